#include "text/grammar/structural_tag.h"

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "text/grammar/schema_compiler.h"
#include "text/unicode.h"

namespace deepinfer {

namespace {

struct Structure {
  std::u32string begin;
  std::u32string end;
  uint32_t callee = 0;
};

std::u32string Decode(const std::string& text) {
  std::u32string out;
  int length = 0;
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(length)) {
    out.push_back(DecodeUtf8(text.data() + at, &length));
  }
  return out;
}

// Builds the automaton by hand: the search for triggers, then what must follow them.
class TagAutomaton {
 public:
  TagAutomaton(std::vector<Structure> structures, std::vector<std::u32string> triggers)
      : structures_(std::move(structures)),
        triggers_(std::move(triggers)),
        dfa_(AlphabetOf(structures_, triggers_)) {
    AddState();
  }

  CodePointDfa Build(bool at_least_one, bool stop_after_first) {
    // The text before the first structure and, where it differs, the text after it.
    const uint32_t first = AddState();
    const bool same = !at_least_one && !stop_after_first;
    const uint32_t later = same ? first : AddState();
    FillText(first, later, !at_least_one);
    if (!same) {
      if (stop_after_first) {
        dfa_.SetLabel(later, 1);
      } else {
        FillText(later, later, true);
      }
    }
    dfa_.SetCalls(std::move(calls_));
    dfa_.Finish();
    return std::move(dfa_);
  }

 private:
  static std::vector<CodePointDfa::ClassStart> AlphabetOf(
      const std::vector<Structure>& structures, const std::vector<std::u32string>& triggers) {
    std::u32string used;
    for (const Structure& structure : structures) used += structure.begin + structure.end;
    for (const std::u32string& trigger : triggers) used += trigger;
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    std::vector<CodePointSet> sets;
    for (const char32_t cp : used) sets.push_back(CodePointSet::Single(cp));
    std::vector<std::vector<uint32_t>> classes;
    return PartitionCodePoints(sets, &classes);
  }

  uint32_t AddState() {
    calls_.emplace_back();
    return dfa_.AddState();
  }

  // States for free text from `start` on, and for the structures, after which `after` goes on.
  void FillText(uint32_t start, uint32_t after, bool may_end) {
    // A trie of the triggers: node 0 is the root.
    std::vector<std::vector<uint32_t>> next(1, std::vector<uint32_t>(dfa_.num_classes(), 0));
    std::vector<std::u32string> path(1);
    std::vector<bool> is_trigger(1, false);
    for (const std::u32string& trigger : triggers_) {
      uint32_t node = 0;
      for (const char32_t cp : trigger) {
        const uint32_t c = dfa_.ClassOf(cp);
        if (next[node][c] == 0) {
          const auto child = static_cast<uint32_t>(next.size());
          next.emplace_back(dfa_.num_classes(), 0);
          path.push_back(path[node] + cp);
          is_trigger.push_back(false);
          next[node][c] = child;
        }
        node = next[node][c];
      }
      is_trigger[node] = true;
    }
    std::vector<uint32_t> states(next.size(), start);
    for (size_t i = 1; i < next.size(); ++i) {
      if (!is_trigger[i]) states[i] = AddState();
    }
    for (size_t i = 1; i < next.size(); ++i) {
      if (is_trigger[i]) states[i] = OpenStructures(path[i], after);
    }
    for (size_t i = 0; i < next.size(); ++i) {
      if (is_trigger[i]) continue;
      dfa_.SetLabel(states[i], may_end ? 1 : 0);
      for (uint32_t c = 0; c < dfa_.num_classes(); ++c) {
        dfa_.SetNext(states[i], c, states[NodeAfter(next, is_trigger, path[i], c)]);
      }
    }
  }

  // The node that stands for `path` and a code point of class `c`: the longest end of it that is
  // a trigger, else the longest end that the trie holds.
  uint32_t NodeAfter(const std::vector<std::vector<uint32_t>>& next,
                     const std::vector<bool>& is_trigger, const std::u32string& path,
                     uint32_t c) const {
    uint32_t longest = 0;
    for (size_t from = 0; from <= path.size(); ++from) {
      uint32_t node = 0;
      bool inside = true;
      for (size_t i = from; i < path.size() && inside; ++i) {
        node = next[node][dfa_.ClassOf(path[i])];
        inside = node != 0;
      }
      if (!inside || next[node][c] == 0) continue;
      if (is_trigger[next[node][c]]) return next[node][c];
      if (longest == 0) longest = next[node][c];
    }
    return longest;
  }

  // The state after `trigger`: the rest of each begin, the value, the end.
  uint32_t OpenStructures(const std::u32string& trigger, uint32_t after) {
    const uint32_t open = AddState();
    for (const Structure& structure : structures_) {
      if (!structure.begin.starts_with(trigger)) continue;
      uint32_t state = open;
      for (size_t i = trigger.size(); i < structure.begin.size(); ++i) {
        const uint32_t c = dfa_.ClassOf(structure.begin[i]);
        uint32_t to = dfa_.NextOfClass(state, c);
        if (to == CodePointDfa::kDead) {
          to = AddState();
          dfa_.SetNext(state, c, to);
        }
        state = to;
      }
      uint32_t target = after;
      for (size_t i = structure.end.size(); i-- > 0;) {
        const uint32_t before = AddState();
        dfa_.SetNext(before, dfa_.ClassOf(structure.end[i]), target);
        target = before;
      }
      calls_[state].push_back({structure.callee, target});
    }
    return open;
  }

  const std::vector<Structure> structures_;
  const std::vector<std::u32string> triggers_;
  CodePointDfa dfa_;
  std::vector<std::vector<CodePointDfa::Call>> calls_;
};

Result<Structure> ParseStructure(const Json& item, const GrammarOptions& options,
                                 WorkBudget* budget, GrammarProgram* program) {
  DI_ASSIGN(const std::string begin, item.GetString("begin", ""));
  DI_ASSIGN(const std::string end, item.GetString("end", ""));
  const Json* schema = item.Find("schema");
  if (begin.empty()) return Invalid("structural tag: \"begin\" must be a text that is not empty");
  if (schema == nullptr) {
    return Invalid(Format("structural tag: the structure \"{}\" has no \"schema\"", begin));
  }
  SchemaCompiler compiler(options, budget, program);
  DI_ASSIGN(const uint32_t value, compiler.Compile(*schema));
  Structure structure;
  structure.begin = Decode(begin);
  structure.end = Decode(end);
  structure.callee = static_cast<uint32_t>(program->callees.size());
  program->callees.push_back({GrammarCallee::Kind::kValue, value, 0, 0});
  return structure;
}

}  // namespace

Status CompileStructuralTag(const std::string& text, const GrammarOptions& options,
                            WorkBudget* budget, GrammarProgram* program) {
  JsonLimits limits;
  limits.depth_max = options.depth_max;
  DI_ASSIGN(const Json source, Json::Parse(text, limits));
  const Json* list = source.Find("structures");
  if (list == nullptr || list->items().empty()) {
    return Invalid("structural tag: \"structures\" must be a list of one structure or more");
  }
  DI_ASSIGN(const bool at_least_one, source.GetBool("at_least_one", false));
  DI_ASSIGN(const bool stop_after_first, source.GetBool("stop_after_first", false));
  std::vector<Structure> structures;
  for (const Json& item : list->items()) {
    DI_ASSIGN(Structure structure, ParseStructure(item, options, budget, program));
    structures.push_back(std::move(structure));
  }
  std::vector<std::u32string> triggers;
  if (const Json* given = source.Find("triggers"); given != nullptr) {
    for (const Json& trigger : given->items()) triggers.push_back(Decode(trigger.string()));
  }
  if (triggers.empty()) {
    for (const Structure& structure : structures) triggers.push_back(structure.begin);
  }
  const auto opens = [](const Structure& structure, const std::u32string& trigger) {
    return structure.begin.starts_with(trigger);
  };
  size_t work = 0;
  for (const std::u32string& trigger : triggers) {
    work += trigger.size() * trigger.size() * 64 + 64;
    if (trigger.empty() || std::none_of(structures.begin(), structures.end(),
                                        [&](const Structure& s) { return opens(s, trigger); })) {
      return Invalid("structural tag: a trigger must be the beginning of some \"begin\"");
    }
  }
  for (const Structure& structure : structures) {
    work += (structure.begin.size() + structure.end.size()) * triggers.size();
    if (std::none_of(triggers.begin(), triggers.end(),
                     [&](const std::u32string& trigger) { return opens(structure, trigger); })) {
      return Invalid("structural tag: a \"begin\" starts with none of the triggers");
    }
  }
  if (!budget->Spend(static_cast<int64_t>(work))) return WorkBudget::Error();
  TagAutomaton automaton(std::move(structures), std::move(triggers));
  program->automata.push_back(automaton.Build(at_least_one, stop_after_first));
  program->start = static_cast<uint32_t>(program->callees.size());
  program->callees.push_back(
      {GrammarCallee::Kind::kRule, static_cast<uint32_t>(program->automata.size() - 1), 0, 0});
  return {};
}

}  // namespace deepinfer
