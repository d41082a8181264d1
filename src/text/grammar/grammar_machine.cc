#include "text/grammar/grammar_machine.h"

#include <algorithm>
#include <unordered_map>

namespace deepinfer {

namespace {

constexpr size_t kTopsMax = 256;
constexpr size_t kSettledMax = 1024;
constexpr uint16_t kHeightMax = 4096;

}  // namespace

GrammarMachine::GrammarMachine(const GrammarProgram& program) : program_(program) {
  GrammarFrame done;
  done.hash = done.class_hash = Mix(program.identity, 1);
  frames_.push_back(done);
}

void GrammarMachine::Start(std::vector<FrameId>* tops) {
  out_ = tops;
  out_begin_ = tops->size();
  settled_.clear();
  Enter(program_.start, kDone);
}

void GrammarMachine::Step(FrameId top, uint8_t byte, size_t begin, std::vector<FrameId>* out) {
  out_ = out;
  out_begin_ = begin;
  if (out->size() == begin) settled_.clear();
  StepOne(top, byte);
}

void GrammarMachine::StepOne(FrameId id, uint8_t byte) {
  ++steps_;
  switch (frames_[id].kind) {
    case Kind::kDone:
      if (program_.whitespace == GrammarOptions::Whitespace::kAny &&
          program_.callees[program_.start].kind == GrammarCallee::Kind::kValue &&
          (byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r')) {
        AddTop(id);
      }
      return;
    case Kind::kRule:
      return StepRule(id, byte);
    case Kind::kString:
    case Kind::kKey:
      return StepString(id, byte);
    case Kind::kNumber:
      return StepNumber(id, byte);
    case Kind::kLiteral:
      return StepLiteral(id, byte);
    case Kind::kValue:
      return StepValue(id, byte);
    case Kind::kObject:
      return StepObject(id, byte);
    case Kind::kArray:
      return StepArray(id, byte);
    case Kind::kRepeat:
      return;  // never a top
  }
}

uint64_t GrammarMachine::CountClass(const GrammarFrame& frame) const {
  // Two classes beyond the exact values: far below the minimum, and far from both limits.
  uint64_t min = 0;
  uint64_t max = kUnbounded;
  switch (frame.kind) {
    case Kind::kString: {
      const StringPlan& plan = program_.strings[frame.plan];
      min = plan.length_min;
      max = plan.length_max;
      if (max != kUnbounded && program_.automata[plan.automaton].shortest_max() > kFar) {
        return frame.count;
      }
      if (frame.count < min) return frame.count;                    // some ways on may be too short
      if (max != kUnbounded) max -= std::min<uint64_t>(max, kFar);  // shortest() within it
      break;
    }
    case Kind::kRepeat:
      min = program_.callees[frame.plan].min;
      max = program_.callees[frame.plan].max;
      break;
    case Kind::kArray:
      if (frame.count < program_.arrays[frame.plan].prefix.size() ||
          program_.arrays[frame.plan].counted) {
        return frame.count;
      }
      min = program_.arrays[frame.plan].items_min;
      max = program_.arrays[frame.plan].items_max;
      break;
    case Kind::kKey:
      // What the key is matters only where it may not be repeated.
      return frames_[frame.parent].value != 0 ? frame.count : 0;
    default:
      return frame.count;
  }
  const uint64_t count = frame.count;
  const bool far_from_max = max == kUnbounded || count + kFar < max;
  if (!far_from_max) return count;
  if (count + kFar < min) return uint64_t{1} << 40;
  if (count >= min) return uint64_t{1} << 41;
  return count;
}

void GrammarMachine::Hash(GrammarFrame* frame) const {
  const uint64_t head = uint64_t{frame->plan} << 32 | frame->state;
  const uint64_t small = uint64_t{static_cast<uint8_t>(frame->kind)} << 56 |
                         uint64_t{frame->phase} << 48 | uint64_t{frame->aux} << 32 |
                         uint64_t{frame->depth} << 16;
  uint64_t base = Mix(head, small);
  base = Mix(base, frame->value);
  if (frame->kind == Kind::kObject && program_.objects[frame->plan].words > 1) {
    for (const uint64_t word : Seen(*frame)) base = Mix(base, word);
  } else {
    base = Mix(base, frame->extra);
  }
  const GrammarFrame& parent = frames_[frame->parent];
  frame->hash = Mix(Mix(base, frame->count), parent.hash);
  frame->class_hash = Mix(Mix(base, CountClass(*frame)), parent.class_hash);
}

FrameId GrammarMachine::Add(GrammarFrame frame) {
  if (frame.kind == Kind::kNumber &&
      program_.numbers[frame.plan].rule.kind() == NumberRule::Kind::kJudged) {
    // The chain of frames is the text; ids differ from run to run, contents do not.
    const uint64_t previous = frame.value;
    frame.value = previous == 0 ? 0 : frames_[previous].hash;
    Hash(&frame);
    frame.value = previous;
  } else if (frame.kind == Kind::kObject && frame.value != 0) {
    const uint64_t chain = frame.value;
    frame.value = words_[chain + 1];
    Hash(&frame);
    frame.value = chain;
  } else {
    Hash(&frame);
  }
  frames_.push_back(frame);
  return static_cast<FrameId>(frames_.size() - 1);
}

GrammarFrame GrammarMachine::Child(Kind kind, uint32_t plan, FrameId parent) const {
  GrammarFrame frame;
  frame.kind = kind;
  frame.plan = plan;
  frame.parent = parent;
  frame.depth = frames_[parent].depth;
  frame.height = static_cast<uint16_t>(frames_[parent].height + 1);
  return frame;
}

void GrammarMachine::Emit(const GrammarFrame& frame) {
  if (frame.height > kHeightMax) {
    limit_ = "the grammar nests too deeply here";
    return;
  }
  Settle(Add(frame));
}

void GrammarMachine::AddTop(FrameId id) {
  const uint64_t hash = frames_[id].hash;
  for (size_t i = out_begin_; i < out_->size(); ++i) {
    if (frames_[(*out_)[i]].hash == hash) return;
  }
  if (out_->size() - out_begin_ >= kTopsMax) {
    limit_ = "the output can be read in too many ways";
    return;
  }
  out_->push_back(id);
}

void GrammarMachine::Settle(FrameId id) {
  const Kind kind = frames_[id].kind;
  if (kind != Kind::kRule && kind != Kind::kRepeat) return AddTop(id);
  work_.push_back(id);
  if (settling_) return;
  settling_ = true;
  while (!work_.empty()) {
    const FrameId next = work_.back();
    work_.pop_back();
    const uint64_t hash = frames_[next].hash;
    steps_ += 1 + static_cast<int64_t>(settled_.size() / 32);
    if (std::find(settled_.begin(), settled_.end(), hash) != settled_.end()) continue;
    if (settled_.size() >= kSettledMax) {
      limit_ = "the output can be read in too many ways";
      work_.clear();
      break;
    }
    settled_.push_back(hash);
    if (frames_[next].kind == Kind::kRule) {
      SettleRule(next);
    } else {
      SettleRepeat(next);
    }
  }
  settling_ = false;
}

void GrammarMachine::SettleRule(FrameId id) {
  const GrammarFrame frame = frames_[id];
  const CodePointDfa& automaton = program_.automata[frame.plan];
  if (frame.phase != 0) return AddTop(id);  // inside a character
  if (automaton.leads_on(frame.state)) AddTop(id);
  for (const CodePointDfa::Call& call : automaton.calls(frame.state)) {
    GrammarFrame after = frame;
    after.state = call.target;
    // Nothing left to do after the call: its end is the end of this rule.
    const bool last = automaton.label(call.target) != 0 && automaton.calls(call.target).empty() &&
                      !automaton.leads_on(call.target);
    Enter(call.callee, last ? frame.parent : Add(after));
  }
  if (automaton.label(frame.state) != 0) Settle(frame.parent);
}

void GrammarMachine::SettleRepeat(FrameId id) {
  const GrammarFrame frame = frames_[id];
  const GrammarCallee& repeat = program_.callees[frame.plan];
  if (frame.count < repeat.max) {
    GrammarFrame after = frame;
    after.count =
        repeat.max == kUnbounded ? std::min(frame.count + 1, repeat.min) : frame.count + 1;
    Enter(repeat.index, Add(after));
  }
  if (frame.count >= repeat.min) Settle(frame.parent);
}

void GrammarMachine::Enter(uint32_t callee, FrameId parent) {
  const GrammarCallee& target = program_.callees[callee];
  switch (target.kind) {
    case GrammarCallee::Kind::kRule: {
      GrammarFrame frame = Child(Kind::kRule, target.index, parent);
      frame.state = CodePointDfa::kStart;
      return Emit(frame);
    }
    case GrammarCallee::Kind::kRepeat:
      return Emit(Child(Kind::kRepeat, callee, parent));
    case GrammarCallee::Kind::kValue: {
      GrammarFrame frame = Child(Kind::kValue, target.index, parent);
      // Space before a document is for documents that are checked.
      if (program_.whitespace != GrammarOptions::Whitespace::kAny) frame.aux = UINT16_MAX;
      return Emit(frame);
    }
  }
}

bool GrammarMachine::CanFinish(FrameId top) {
  const GrammarFrame& frame = frames_[top];
  if (frame.kind == Kind::kDone) return true;
  if (frame.kind != Kind::kNumber || !NumberMayEnd(top)) return false;
  if (frame.parent == kDone) return true;
  const Kind parent = frames_[frame.parent].kind;
  if (parent == Kind::kObject || parent == Kind::kArray) return false;
  std::vector<FrameId> tops;
  const Mark before = mark();
  out_ = &tops;
  out_begin_ = 0;
  settled_.clear();
  Settle(frame.parent);
  const bool done = std::find(tops.begin(), tops.end(), kDone) != tops.end();
  Release(before);
  return done;
}

void GrammarMachine::Release(const Mark& mark) {
  frames_.resize(mark.frames);
  words_.resize(mark.words);
}

void GrammarMachine::Compact(std::span<FrameId* const> tops) {
  std::vector<FrameId> renamed(frames_.size(), 0);
  std::vector<uint8_t> used(frames_.size(), 0);
  used[kDone] = 1;
  std::vector<FrameId> work;
  for (const FrameId* top : tops) work.push_back(*top);
  const auto chained = [&](const GrammarFrame& frame) {
    return frame.kind == Kind::kNumber &&
           program_.numbers[frame.plan].rule.kind() == NumberRule::Kind::kJudged;
  };
  while (!work.empty()) {
    const FrameId id = work.back();
    work.pop_back();
    if (used[id] != 0) continue;
    used[id] = 1;
    work.push_back(frames_[id].parent);
    if (chained(frames_[id])) work.push_back(static_cast<FrameId>(frames_[id].value));
  }
  std::vector<GrammarFrame> kept;
  std::vector<uint64_t> words;
  std::unordered_map<uint64_t, uint64_t> chains;  // old to new
  for (FrameId id = 0; id < frames_.size(); ++id) {
    if (used[id] == 0) continue;
    GrammarFrame frame = frames_[id];
    frame.parent = renamed[frame.parent];  // parents come first
    if (chained(frame)) frame.value = renamed[frame.value];
    if (frame.kind == Kind::kObject && program_.objects[frame.plan].words > 1) {
      const std::span<const uint64_t> seen = Seen(frames_[id]);
      frame.extra = words.size();
      words.insert(words.end(), seen.begin(), seen.end());
    }
    if (frame.kind == Kind::kObject && frame.value != 0) {
      frame.value = CopyChain(frame.value, &chains, &words);
    }
    renamed[id] = static_cast<FrameId>(kept.size());
    kept.push_back(frame);
  }
  for (FrameId* top : tops) *top = renamed[*top];
  frames_ = std::move(kept);
  words_ = std::move(words);
}

// The chain of other keys that ends at `end`, in `words`; parts that are there already are shared.
uint64_t GrammarMachine::CopyChain(uint64_t end, std::unordered_map<uint64_t, uint64_t>* chains,
                                   std::vector<uint64_t>* words) const {
  std::vector<uint64_t> missing;
  uint64_t at = end;
  for (; at != 0 && !chains->contains(at); at = words_[at - 1]) missing.push_back(at);
  uint64_t copied = at == 0 ? 0 : chains->at(at);
  while (!missing.empty()) {
    const uint64_t from = missing.back();
    missing.pop_back();
    const uint64_t before = copied;
    copied = words->size() + 1;
    words->insert(words->end(), {before, words_[from], words_[from + 1]});
    chains->emplace(from, copied);
  }
  return copied;
}

std::span<const uint64_t> GrammarMachine::Seen(const GrammarFrame& object) const {
  const uint32_t words = program_.objects[object.plan].words;
  if (words <= 1) return {&object.extra, words};
  return std::span(words_).subspan(object.extra, words);
}

}  // namespace deepinfer
