// The machine inside texts: rules over code points, JSON strings and keys with their escapes.
#include <algorithm>

#include "text/grammar/grammar_machine.h"

namespace deepinfer {

namespace {

// Phases of kString and kKey; kRule uses kPlain and kUtf8.
enum Phase : uint8_t {
  kPlain,
  kUtf8,      // value: bits so far; aux: bytes of the whole << 8 | bytes to come
  kEscape,    // after the backslash
  kHex,       // value: digits so far; aux: how many
  kLowSlash,  // value: the high surrogate; its partner must follow
  kLowLetter,
  kLowHex,  // value: high surrogate << 16 | digits so far; aux: how many
};

constexpr char32_t kControlMax = 0x1F;  // characters that JSON must escape, as " and backslash

int HexDigit(uint8_t c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int low = c | 0x20;
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

}  // namespace

const CodePointDfa& GrammarMachine::AutomatonOf(const GrammarFrame& frame) const {
  switch (frame.kind) {
    case Kind::kString:
      return program_.automata[program_.strings[frame.plan].automaton];
    case Kind::kKey:
      return program_.automata[program_.objects[frame.plan].automaton];
    default:
      return program_.automata[frame.plan];
  }
}

bool GrammarMachine::AdvanceText(const GrammarFrame& frame, char32_t cp, uint32_t* state,
                                 uint32_t* count) const {
  const CodePointDfa& automaton = AutomatonOf(frame);
  const uint32_t next = automaton.Next(*state, cp);
  if (next == CodePointDfa::kDead) return false;
  *state = next;
  if (frame.kind == Kind::kKey) {
    if (HashesKeys(frame.plan)) *count = HashKey(*count, cp);
    return KeyLive(frames_[frame.parent], next);
  }
  if (frame.kind != Kind::kString) return true;
  const StringPlan& plan = program_.strings[frame.plan];
  if (plan.length_max != kUnbounded) {
    ++*count;
    if (uint64_t{*count} + automaton.shortest(next) > plan.length_max) return false;
  } else if (*count < plan.length_min) {
    ++*count;
  }
  const uint32_t longest = automaton.longest(next);
  return longest == CodePointDfa::kInfinite || uint64_t{*count} + longest >= plan.length_min;
}

bool GrammarMachine::AnyCodePoint(const GrammarFrame& frame, char32_t first, char32_t last) const {
  const std::vector<CodePointDfa::ClassStart>& starts = AutomatonOf(frame).class_starts();
  auto at = std::upper_bound(
      starts.begin(), starts.end(), first,
      [](char32_t value, const CodePointDfa::ClassStart& start) { return value < start.first; });
  for (--at; at != starts.end() && at->first <= last; ++at) {
    char32_t low = std::max(at->first, first);
    const char32_t next = at + 1 == starts.end() ? kCodePointMax + 1 : (at + 1)->first;
    const char32_t high = std::min<char32_t>(next - 1, last);
    if (low >= 0xD800 && low <= 0xDFFF) low = 0xE000;
    if (low > high) continue;
    uint32_t state = frame.state;
    uint32_t count = frame.count;
    if (AdvanceText(frame, low, &state, &count)) return true;
  }
  return false;
}

FrameId GrammarMachine::MoveText(const GrammarFrame& frame, uint32_t state, uint32_t count) {
  GrammarFrame next = frame;
  next.state = state;
  next.count = count;
  return Add(next);
}

// A key that the schema does not name may be added.
bool GrammarMachine::OtherKeyFits(const GrammarFrame& object) const {
  const ObjectPlan& plan = program_.objects[object.plan];
  if (plan.properties_max == kUnbounded) return true;
  uint32_t missing = 0;
  const std::span<const uint64_t> seen = Seen(object);
  for (uint32_t w = 0; w < plan.words; ++w) {
    missing += static_cast<uint32_t>(__builtin_popcountll(plan.required[w] & ~seen[w]));
  }
  return uint64_t{object.count} + missing < plan.properties_max;
}

GrammarMachine::TextView GrammarMachine::ViewText(const GrammarFrame& frame,
                                                  uint32_t common) const {
  using Open = TextView::Open;
  TextView view;
  if (frame.phase != kPlain) return view;
  if (frame.kind == Kind::kRule) {
    if (AutomatonOf(frame).open(frame.state)) view.open = Open::kPlain;
  } else if (frame.kind == Kind::kKey) {
    const CodePointDfa& automaton = AutomatonOf(frame);
    if (program_.objects[frame.plan].always_other && OtherKeyFits(frames_[frame.parent])) {
      view.open = automaton.full(frame.state)   ? Open::kFull
                  : automaton.open(frame.state) ? Open::kPlain
                                                : Open::kNone;
      // Any key may be one that the schema does not name, so the automaton alone decides.
      view.inside_key = InsideKey(automaton, frame.state, 0, 0);
    }
  } else if (frame.kind == Kind::kString) {
    ViewString(frame, common, &view);
  }
  return view;
}

void GrammarMachine::ViewString(const GrammarFrame& frame, uint32_t common, TextView* view) const {
  using Open = TextView::Open;
  const StringPlan& plan = program_.strings[frame.plan];
  const CodePointDfa& automaton = AutomatonOf(frame);
  if (plan.length_max != kUnbounded) view->room = plan.length_max - frame.count;
  const bool far = uint64_t{view->room} >= uint64_t{kFar} + automaton.shortest_max();
  if (automaton.full(frame.state) && (far || automaton.full_accepting(frame.state))) {
    view->open = Open::kFull;
    view->may_end = automaton.full_accepting(frame.state) && frame.count >= plan.length_min;
    return;
  }
  if (automaton.open(frame.state) && (far || automaton.open_accepting(frame.state))) {
    view->open = Open::kPlain;
  }
  // Equal: the automaton, its state, and both limits where they are near enough to matter.
  const bool min_matters = frame.count < plan.length_min && !automaton.endless(frame.state);
  const uint32_t missing = min_matters ? plan.length_min - frame.count : 0;
  const bool roomy = uint64_t{view->room} >= uint64_t{common} + automaton.shortest_max();
  view->use_unlimited = missing == 0 && (roomy || automaton.always_accepting(frame.state));
  view->unlimited = plan.unlimited;
  view->inside_key = InsideKey(automaton, frame.state,
                               roomy || view->use_unlimited ? kUnbounded : view->room, missing);
}

uint64_t GrammarMachine::InsideKey(const CodePointDfa& automaton, uint32_t state, uint32_t room,
                                   uint32_t missing) const {
  const uint64_t limits = uint64_t{room} << 32 | missing;
  return Mix(Mix(automaton.hash(), state), Mix(limits, program_.escapes_anywhere ? 3 : 5)) | 1;
}

GrammarMachine::TextTable GrammarMachine::TableOf(const GrammarFrame& frame) const {
  const CodePointDfa& automaton = AutomatonOf(frame);
  TextTable table;
  table.next = automaton.table();
  table.ascii = automaton.ascii();
  table.shortest = automaton.shortest_table();
  table.longest = automaton.longest_table();
  table.num_classes = automaton.num_classes();
  table.json = frame.kind != Kind::kRule;
  if (frame.kind == Kind::kString) {
    table.length_min = program_.strings[frame.plan].length_min;
    table.length_max = program_.strings[frame.plan].length_max;
  } else if (frame.kind == Kind::kKey) {
    table.hash_key = HashesKeys(frame.plan);
    table.complete =
        program_.objects[frame.plan].always_other && OtherKeyFits(frames_[frame.parent]);
  }
  return table;
}

void GrammarMachine::EndText(const GrammarFrame& frame, std::vector<FrameId>* out) {
  out_ = out;
  out_begin_ = out->size();
  settled_.clear();
  Settle(frame.parent);
}

// Where the characters are given, one spelling of each will do: it leaves less to choose.
bool GrammarMachine::FreeEscapes(const GrammarFrame& frame) const {
  return program_.escapes_anywhere || AutomatonOf(frame).full(frame.state);
}

void GrammarMachine::TakeCodePoint(const GrammarFrame& frame, char32_t cp) {
  GrammarFrame next = frame;
  next.phase = kPlain;
  next.value = 0;
  next.aux = 0;
  if (AdvanceText(frame, cp, &next.state, &next.count)) Emit(next);
}

void GrammarMachine::StepUtf8(FrameId id, uint8_t byte) {
  const GrammarFrame frame = frames_[id];
  GrammarFrame next = frame;
  next.phase = kUtf8;
  unsigned total = 0;
  unsigned left = 0;
  if (frame.phase == kPlain) {
    if (byte < 0xC2 || byte > 0xF4) return;
    total = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    left = total - 1;
    next.value = byte & (0x7FU >> total);
  } else {
    if ((byte & 0xC0) != 0x80) return;
    total = frame.aux >> 8;
    left = (frame.aux & 0xFFU) - 1;
    next.value = frame.value << 6 | (byte & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const char32_t first = std::max(static_cast<char32_t>(next.value << (6 * left)), kLeast[total]);
  const char32_t last =
      std::min(static_cast<char32_t>(((next.value + 1) << (6 * left)) - 1), kCodePointMax);
  if (first > last) return;
  if (left == 0) {
    if (first >= 0xD800 && first <= 0xDFFF) return;
    return TakeCodePoint(frame, first);
  }
  next.aux = static_cast<uint16_t>(total << 8 | left);
  if (AnyCodePoint(frame, first, last)) Emit(next);
}

void GrammarMachine::StepRule(FrameId id, uint8_t byte) {
  const GrammarFrame frame = frames_[id];
  if (byte < 0x80) {
    if (frame.phase == kPlain) TakeCodePoint(frame, byte);
  } else {
    StepUtf8(id, byte);
  }
}

void GrammarMachine::StepString(FrameId id, uint8_t byte) {
  const GrammarFrame frame = frames_[id];
  switch (frame.phase) {
    case kPlain:
      if (byte == '"') return EndString(id);
      if (byte == '\\') {
        const bool some = FreeEscapes(frame) ? AnyCodePoint(frame, 0, kCodePointMax)
                                             : AnyCodePoint(frame, 0, kControlMax) ||
                                                   AnyCodePoint(frame, '"', '"') ||
                                                   AnyCodePoint(frame, '\\', '\\');
        if (!some) return;
        GrammarFrame next = frame;
        next.phase = kEscape;
        return Emit(next);
      }
      if (byte < 0x20) return;
      if (byte < 0x80) return TakeCodePoint(frame, byte);
      [[fallthrough]];
    case kUtf8:
      return StepUtf8(id, byte);
    case kEscape:
      return StepEscape(id, byte);
    default:
      return StepHex(id, byte);
  }
}

void GrammarMachine::StepEscape(FrameId id, uint8_t byte) {
  const GrammarFrame frame = frames_[id];
  constexpr char kShort[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
  for (size_t i = 0; i + 1 < sizeof(kShort); i += 2) {
    if (static_cast<char>(byte) == kShort[i] && (byte != '/' || FreeEscapes(frame))) {
      return TakeCodePoint(frame, static_cast<char32_t>(kShort[i + 1]));
    }
  }
  if (byte != 'u' || (!FreeEscapes(frame) && !AnyCodePoint(frame, 0, kControlMax))) return;
  GrammarFrame next = frame;
  next.phase = kHex;
  Emit(next);
}

void GrammarMachine::StepHex(FrameId id, uint8_t byte) {
  const GrammarFrame frame = frames_[id];
  GrammarFrame next = frame;
  if (frame.phase == kLowSlash || frame.phase == kLowLetter) {
    if (byte != (frame.phase == kLowSlash ? '\\' : 'u')) return;
    next.phase = static_cast<uint8_t>(frame.phase + 1);
    if (next.phase == kLowHex) next.value = frame.value << 16;
    return Emit(next);
  }
  const int digit = HexDigit(byte);
  if (digit < 0) return;
  const bool low = frame.phase == kLowHex;
  const uint64_t high = low ? frame.value >> 16 : 0;
  const uint64_t unit =
      (low ? frame.value & 0xFFFF : frame.value) << 4 | static_cast<uint64_t>(digit);
  next.aux = static_cast<uint16_t>(frame.aux + 1);
  next.value = low ? high << 16 | unit : unit;
  const unsigned left = 4U - next.aux;
  if (!FreeEscapes(frame) && (unit << (4 * left)) > kControlMax) return;
  auto first = static_cast<char32_t>(unit << (4 * left));
  auto last = static_cast<char32_t>(((unit + 1) << (4 * left)) - 1);
  if (low) {
    first = std::max<char32_t>(first, 0xDC00);
    last = std::min<char32_t>(last, 0xDFFF);
    if (first > last) return;
    const auto base = static_cast<char32_t>(0x10000 + ((high - 0xD800) << 10));
    first = base + (first - 0xDC00);
    last = base + (last - 0xDC00);
  }
  if (left == 0) {
    if (!low && first >= 0xDC00 && first <= 0xDFFF) return;
    if (!low && first >= 0xD800 && first <= 0xDBFF) {
      next.phase = kLowSlash;
      next.aux = 0;
      const auto base = static_cast<char32_t>(0x10000 + ((unit - 0xD800) << 10));
      if (AnyCodePoint(frame, base, base + 0x3FF)) Emit(next);
      return;
    }
    return TakeCodePoint(frame, first);
  }
  if (!FreeEscapes(frame)) last = std::min(last, kControlMax);
  bool live = AnyCodePoint(frame, first, last);
  if (!low && !live && first <= 0xDBFF && last >= 0xD800) {
    const char32_t from = std::max<char32_t>(first, 0xD800) - 0xD800;
    const char32_t to = std::min<char32_t>(last, 0xDBFF) - 0xD800;
    live = AnyCodePoint(frame, 0x10000 + (from << 10), 0x10000 + (to << 10) + 0x3FF);
  }
  if (live) Emit(next);
}

void GrammarMachine::EndString(FrameId id) {
  const GrammarFrame frame = frames_[id];
  const uint32_t label = AutomatonOf(frame).label(frame.state);
  if (label == 0) return;
  if (frame.kind == Kind::kKey) return EndKey(frame);
  if (frame.count >= program_.strings[frame.plan].length_min) Settle(frame.parent);
}

}  // namespace deepinfer
