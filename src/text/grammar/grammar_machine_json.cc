// The machine inside JSON values: objects in any order of keys, arrays, numbers, literals.
#include <algorithm>
#include <string>

#include "text/grammar/grammar_machine.h"

namespace deepinfer {

namespace {

constexpr const char* kLiterals[] = {"null", "true", "false"};

// Phases of kObject and kArray.
enum Phase : uint8_t {
  kFirst,  // after the opening bracket
  kColon,  // after a key
  kAfter,  // after a value
  kNext,   // after a comma
};

constexpr uint32_t kNumberMax = 10'000;

constexpr uint16_t kNoSpace = UINT16_MAX;
constexpr uint16_t kOneSpace = 1;
constexpr uint16_t kLineBreak = 2;  // and this many less 2 spaces of indentation
constexpr uint16_t kIndentMax = kLineBreak + 32;

// The state after one more byte of space, or kNoSpace when it is not allowed.
uint16_t NextSpace(GrammarOptions::Whitespace policy, uint16_t state, uint8_t byte) {
  if (policy == GrammarOptions::Whitespace::kAny) return 0;
  if (policy == GrammarOptions::Whitespace::kCompact) return kNoSpace;
  if (state == 0) {
    return byte == ' ' ? kOneSpace : byte == '\n' ? kLineBreak : kNoSpace;
  }
  if (state >= kLineBreak && state < kIndentMax && (byte == ' ' || byte == '\t')) {
    return static_cast<uint16_t>(state + 1);
  }
  return kNoSpace;
}

bool IsSpace(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

NumberState StateOf(const GrammarFrame& frame) {
  NumberState state;
  state.phase = frame.phase;
  state.negative = frame.state != 0;
  state.fraction_digits = frame.aux;
  state.digits = static_cast<unsigned __int128>(frame.extra) << 64 | frame.value;
  return state;
}

void SetPlace(const NumberState& state, GrammarFrame* frame) {
  frame->state = state.negative ? 1 : 0;
  frame->aux = state.fraction_digits;
  frame->value = static_cast<uint64_t>(state.digits);
  frame->extra = static_cast<uint64_t>(state.digits >> 64);
}

}  // namespace

bool GrammarMachine::StepSpace(FrameId id, uint8_t byte) {
  if (!IsSpace(byte)) return false;
  GrammarFrame next = frames_[id];
  if (next.aux != kNoSpace) next.aux = NextSpace(program_.whitespace, next.aux, byte);
  if (next.aux != kNoSpace) Emit(next);
  return true;
}

void GrammarMachine::StepValue(FrameId id, uint8_t byte) {
  if (StepSpace(id, byte)) return;
  StartValue(frames_[id].plan, frames_[id].parent, byte);
}

void GrammarMachine::StartValue(uint32_t node, FrameId parent, uint8_t byte) {
  using T = JsonTypes;
  const ValueNode& value = program_.values[node];
  const bool digit = (byte >= '0' && byte <= '9') || byte == '-';
  unsigned type = 0;
  if (byte == '"') type = T::kString;
  if (byte == '{') type = T::kObject;
  if (byte == '[') type = T::kArray;
  if (byte == 'n') type = T::kNull;
  if (byte == 't') type = T::kTrue;
  if (byte == 'f') type = T::kFalse;
  if (digit) type = T::kNumber;
  if ((value.types & type) == 0) return;
  for (const ValueAlternative& alternative : value.alternatives) {
    if (alternative.type != type) continue;
    if (type == T::kNumber) {
      StartNumber(alternative.plan, parent, byte);
      continue;
    }
    GrammarFrame frame = Child(Kind::kLiteral, alternative.plan, parent);
    frame.phase = 1;
    if (type == T::kString) {
      frame.kind = Kind::kString;
      frame.state = CodePointDfa::kStart;
      frame.phase = 0;
    } else if (type == T::kObject || type == T::kArray) {
      frame.kind = type == T::kObject ? Kind::kObject : Kind::kArray;
      frame.phase = kFirst;
      if (++frame.depth > program_.depth_max) {
        limit_ = "the output nests deeper than the limit";
        continue;
      }
      if (type == T::kObject && program_.objects[alternative.plan].words > 1) {
        frame.extra = words_.size();
        words_.resize(words_.size() + program_.objects[alternative.plan].words, 0);
      }
    } else {
      frame.plan = type == T::kNull ? 0 : type == T::kTrue ? 1 : 2;
    }
    Emit(frame);
  }
}

void GrammarMachine::StepLiteral(FrameId id, uint8_t byte) {
  GrammarFrame next = frames_[id];
  const char* text = kLiterals[next.plan];
  if (static_cast<char>(byte) != text[next.phase]) return;
  ++next.phase;
  if (text[next.phase] == '\0') return Settle(next.parent);
  Emit(next);
}

// Numbers. -------------------------------------------------------------------------------------

void GrammarMachine::StartNumber(uint32_t plan, FrameId parent, uint8_t byte) {
  GrammarFrame frame = Child(Kind::kNumber, plan, parent);
  if (program_.numbers[plan].rule.kind() == NumberRule::Kind::kListed) {
    frame.state = CodePointDfa::kStart;
  }
  const FrameId start = Add(frame);
  StepNumber(start, byte);
}

void GrammarMachine::StepNumber(FrameId id, uint8_t byte) {
  const GrammarFrame frame = frames_[id];
  const NumberPlan& plan = program_.numbers[frame.plan];
  const bool judged = plan.rule.kind() == NumberRule::Kind::kJudged;
  // What can only go on inside the number is not judged: that would take its length each time.
  const bool inside = judged && frame.parent != kDone && frames_[frame.parent].depth > 0 &&
                      (byte == '.' || byte == 'e' || byte == 'E' || (byte >= '0' && byte <= '9'));
  if (!inside && NumberMayEnd(id)) {
    // The number may have ended before this byte.
    std::vector<FrameId>* const out = out_;
    const size_t begin = out_begin_;
    std::vector<uint64_t> settled;
    std::swap(settled, settled_);
    std::vector<FrameId> tops;
    out_ = &tops;
    out_begin_ = 0;
    Settle(frame.parent);
    std::swap(settled, settled_);
    out_ = out;
    out_begin_ = begin;
    for (const FrameId top : tops) StepOne(top, byte);
  }
  GrammarFrame next = frame;
  if (plan.rule.kind() == NumberRule::Kind::kListed) {
    if (byte >= 0x80) return;
    next.state = program_.automata[plan.automaton].Next(frame.state, byte);
    if (next.state != CodePointDfa::kDead) Emit(next);
    return;
  }
  NumberState state = StateOf(frame);
  if (judged) state = {frame.phase, false, 0, 0};
  if (!plan.rule.Step(static_cast<char>(byte), &state)) return;
  next.phase = state.phase;
  if (judged) {
    next.value = id;  // the byte before this one
    next.aux = byte;
    if (++next.count > kNumberMax) {
      limit_ = "a number has more than 10000 characters";
      return;
    }
  } else if (plan.rule.kind() == NumberRule::Kind::kScaled) {
    SetPlace(state, &next);
  }
  Emit(next);
}

const NumberRule* GrammarMachine::ViewNumber(const GrammarFrame& frame, NumberState* state) const {
  if (frame.kind != Kind::kNumber) return nullptr;
  const NumberRule& rule = program_.numbers[frame.plan].rule;
  const Kind parent = frames_[frame.parent].kind;
  const bool fits = rule.kind() == NumberRule::Kind::kFree ||
                    rule.kind() == NumberRule::Kind::kInteger ||
                    rule.kind() == NumberRule::Kind::kScaled;
  if (!fits || (parent != Kind::kObject && parent != Kind::kArray && parent != Kind::kDone)) {
    return nullptr;
  }
  *state = StateOf(frame);
  return &rule;
}

FrameId GrammarMachine::MoveNumber(const GrammarFrame& frame, const NumberState& state) {
  GrammarFrame next = frame;
  next.phase = state.phase;
  if (program_.numbers[frame.plan].rule.kind() == NumberRule::Kind::kScaled) {
    SetPlace(state, &next);
  }
  return Add(next);
}

bool GrammarMachine::NumberMayEnd(FrameId id) const {
  const GrammarFrame& frame = frames_[id];
  const NumberPlan& plan = program_.numbers[frame.plan];
  switch (plan.rule.kind()) {
    case NumberRule::Kind::kListed:
      return program_.automata[plan.automaton].label(frame.state) != 0;
    case NumberRule::Kind::kJudged: {
      if (!plan.rule.MayEnd({frame.phase, false, 0, 0})) return false;
      std::string text;
      for (FrameId at = id; frames_[at].value != 0; at = static_cast<FrameId>(frames_[at].value)) {
        text += static_cast<char>(frames_[at].aux);
      }
      std::reverse(text.begin(), text.end());
      return plan.rule.AdmitsText(text);
    }
    default:
      return plan.rule.MayEnd(StateOf(frame));
  }
}

// Objects. -------------------------------------------------------------------------------------

// A key whose automaton stands at `state` can still become one that may be added now.
bool GrammarMachine::KeyLive(const GrammarFrame& object, uint32_t state) const {
  const ObjectPlan& plan = program_.objects[object.plan];
  const std::span<const uint64_t> seen = Seen(object);
  bool room = true;  // for a key that is not required
  if (plan.properties_max != kUnbounded) {
    uint32_t missing = 0;
    for (uint32_t w = 0; w < plan.words; ++w) {
      missing += static_cast<uint32_t>(__builtin_popcountll(plan.required[w] & ~seen[w]));
    }
    if (object.count + missing > plan.properties_max || object.count == plan.properties_max) {
      return false;
    }
    room = object.count + missing < plan.properties_max;
  }
  if (room && plan.reach_other[state] != 0) return true;
  const uint64_t* reach = plan.reach.data() + size_t{state} * plan.words;
  for (uint32_t w = 0; w < plan.words; ++w) {
    const uint64_t open = reach[w] & ~seen[w];
    if ((room ? open : open & plan.required[w]) != 0) return true;
  }
  return false;
}

bool GrammarMachine::KeyCanStart(FrameId object) const {
  return KeyLive(frames_[object], CodePointDfa::kStart);
}

bool GrammarMachine::CanClose(const GrammarFrame& object) const {
  const ObjectPlan& plan = program_.objects[object.plan];
  if (object.count < plan.properties_min) return false;
  const std::span<const uint64_t> seen = Seen(object);
  for (uint32_t w = 0; w < plan.words; ++w) {
    if ((plan.required[w] & ~seen[w]) != 0) return false;
  }
  return true;
}

bool GrammarMachine::UsedOther(const GrammarFrame& object, uint32_t hash) const {
  for (uint64_t at = object.value; at != 0; at = words_[at - 1]) {
    if (words_[at] == hash) return true;
  }
  return false;
}

void GrammarMachine::UseOther(uint32_t hash, GrammarFrame* object) {
  const uint64_t before = object->value;
  const uint64_t chain = before == 0 ? 0 : words_[before + 1];
  object->value = words_.size() + 1;
  words_.insert(words_.end(), {before, uint64_t{hash}, Mix(chain, hash)});
}

void GrammarMachine::EndKey(const GrammarFrame& key) {
  const ObjectPlan& plan = program_.objects[key.plan];
  const ObjectPlan::KeyLabel& label =
      plan.labels[program_.automata[plan.automaton].label(key.state) - 1];
  GrammarFrame object = frames_[key.parent];
  const bool required = label.tracked != ObjectPlan::kUntracked &&
                        (plan.required[label.tracked / 64] >> (label.tracked % 64) & 1) != 0;
  if (!required && !OtherKeyFits(object)) return;  // the room is for required ones
  if (label.tracked == ObjectPlan::kUntracked && HashesKeys(key.plan)) {
    // Once more only where it cannot become another key, which would be a dead end.
    if (UsedOther(object, key.count) && AnyCodePoint(key, 0, kCodePointMax)) return;
    UseOther(key.count, &object);
  }
  if (label.tracked != ObjectPlan::kUntracked) {
    const uint32_t word = label.tracked / 64;
    const uint64_t bit = uint64_t{1} << (label.tracked % 64);
    if ((Seen(object)[word] & bit) != 0) return;  // no key twice
    if (plan.words > 1) {
      const uint64_t from = object.extra;
      object.extra = words_.size();
      for (uint32_t w = 0; w < plan.words; ++w) words_.push_back(words_[from + w]);
      words_[object.extra + word] |= bit;
    } else {
      object.extra |= bit;
    }
  }
  if (plan.properties_max != kUnbounded || object.count < plan.properties_min) ++object.count;
  object.phase = kColon;
  object.aux = 0;
  object.state = label.value;
  Emit(object);
}

void GrammarMachine::StepObject(FrameId id, uint8_t byte) {
  const GrammarFrame frame = frames_[id];
  const bool tight = frame.phase == kColon &&  // nobody writes a space there
                     program_.whitespace != GrammarOptions::Whitespace::kAny;
  if (!tight && StepSpace(id, byte)) return;
  if (byte == '}' && (frame.phase == kFirst || frame.phase == kAfter)) {
    if (CanClose(frame)) Settle(frame.parent);
    return;
  }
  if (frame.phase == kColon) {
    if (byte != ':') return;
    GrammarFrame after = frame;
    after.phase = kAfter;
    after.aux = 0;
    after.state = 0;
    return Emit(Child(Kind::kValue, frame.state, Add(after)));
  }
  if (frame.phase == kAfter) {
    if (byte != ',' || !KeyCanStart(id)) return;
    GrammarFrame next = frame;
    next.phase = kNext;
    next.aux = 0;
    return Emit(next);
  }
  if (byte != '"' || !KeyCanStart(id)) return;
  GrammarFrame key = Child(Kind::kKey, frame.plan, id);
  key.state = CodePointDfa::kStart;
  Emit(key);
}

// Arrays. --------------------------------------------------------------------------------------

bool GrammarMachine::ItemCanStart(const GrammarFrame& array) const {
  return array.count < program_.arrays[array.plan].items_max;
}

void GrammarMachine::StartItemAs(FrameId array, uint32_t node, uint64_t matches, uint8_t byte) {
  const ArrayPlan& plan = program_.arrays[frames_[array].plan];
  GrammarFrame after = frames_[array];
  after.phase = kAfter;
  after.aux = 0;
  after.value = matches;
  // Without a maximum, items beyond the minimum and the prefix are alike.
  const uint64_t alike = std::max<uint64_t>(plan.items_min, plan.prefix.size() + 1);
  if (plan.items_max != kUnbounded || after.count < alike) ++after.count;
  // The matches still wanted must fit into what may follow.
  if (plan.counted && plan.items_max != kUnbounded &&
      matches + (plan.items_max - after.count) < plan.count_min) {
    return;
  }
  StartValue(node, Add(after), byte);
}

void GrammarMachine::StartItem(FrameId array, uint8_t byte) {
  const GrammarFrame frame = frames_[array];
  const ArrayPlan& plan = program_.arrays[frame.plan];
  if (!ItemCanStart(frame)) return;
  const bool in_prefix = frame.count < plan.prefix.size();
  const uint32_t node = in_prefix ? plan.prefix[frame.count] : plan.rest;
  const bool bounded = plan.count_max != kUnbounded;
  if (!plan.counted || (!bounded && frame.value >= plan.count_min)) {
    return StartItemAs(array, node, frame.value, byte);
  }
  if (frame.value < plan.count_max) {
    StartItemAs(array, in_prefix ? plan.prefix_match[frame.count] : plan.rest_match,
                frame.value + 1, byte);
  }
  const uint32_t other = !bounded    ? node
                         : in_prefix ? plan.prefix_miss[frame.count]
                                     : plan.rest_miss;
  StartItemAs(array, other, frame.value, byte);
}

void GrammarMachine::StepArray(FrameId id, uint8_t byte) {
  if (StepSpace(id, byte)) return;
  const GrammarFrame frame = frames_[id];
  const ArrayPlan& plan = program_.arrays[frame.plan];
  if (byte == ']' && (frame.phase == kFirst || frame.phase == kAfter)) {
    if (frame.count >= plan.items_min && frame.value >= plan.count_min) Settle(frame.parent);
    return;
  }
  if (frame.phase == kAfter) {
    if (byte != ',' || !ItemCanStart(frame)) return;
    GrammarFrame next = frame;
    next.phase = kNext;
    next.aux = 0;
    return Emit(next);
  }
  StartItem(id, byte);
}

}  // namespace deepinfer
