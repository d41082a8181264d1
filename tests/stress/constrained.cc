// constrained COUNT [OUT.jsonl]: so many generations of the bundled model under grammars, at random
// temperatures, without and with speculation, preempted and not. Every output must keep to its
// grammar, and every way of running must give the same tokens and log-probabilities. Writes
// {"schema", "output"} lines, for a validator of somebody else's.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "tests/stress/stress_rig.h"
#include "text/grammar/grammar.h"

namespace deepinfer {
namespace {

using Kind = GrammarSource::Kind;

constexpr int kBatch = 40;

// Outputs of bounded length, so that none is cut.
const GrammarSource kSources[] = {
    {Kind::kJsonSchema,
     R"({"type":"object","properties":{"name":{"type":"string","maxLength":20},
         "age":{"type":"integer","minimum":0,"maximum":150},"tame":{"type":"boolean"}},
         "required":["name","age"],"additionalProperties":false})"},
    {Kind::kJsonSchema,
     R"({"type":"array","items":{"enum":["red","green",7,null]},"minItems":1,"maxItems":4})"},
    {Kind::kJsonSchema, R"({"type":"number","minimum":0,"maximum":100,"multipleOf":0.25})"},
    {Kind::kJsonSchema,
     R"({"anyOf":[{"const":null},{"type":"object","properties":{"kind":{"enum":["cat","dog"]},
         "legs":{"$ref":"#/$defs/legs"}},"required":["kind","legs"],"additionalProperties":false}],
         "$defs":{"legs":{"type":"integer","minimum":3,"maximum":4}}})"},
    {Kind::kJsonSchema, R"({"type":"string","pattern":"^[a-z]{2,6}-\\d{3}$"})"},
    {Kind::kJsonSchema, R"({"type":"string","format":"date"})"},
    {Kind::kJsonSchema, R"({"type":"string","minLength":3,"maxLength":12})"},
    {Kind::kJsonSchema,
     R"({"type":"object","properties":{"steps":{"type":"array","maxItems":2,"items":
         {"type":"object","properties":{"do":{"type":"string","maxLength":10}},"required":["do"],
          "additionalProperties":false}}},"required":["steps"],"additionalProperties":false})"},
    {Kind::kRegex, R"((yes|no), [A-Z][a-z]{1,8}\.)"},
    {Kind::kChoice, R"(["a red ball","a red box","two boxes"])"},
    {Kind::kBnf, "root ::= num (op num){0,3}\nop ::= \" + \" | \" - \"\nnum ::= [1-9] [0-9]{0,2}"},
    {Kind::kBnf,
     "root ::= \"<think>\" [a-z ]{0,20} \"</think>\" (\"\\n\" \"\\n\"?)? "
     "%json{\"type\":\"object\",\"properties\":{\"ok\":{\"type\":\"boolean\"}},"
     "\"required\":[\"ok\"],\"additionalProperties\":false}"},
};

constexpr const char* kTexts[] = {"Once upon a time", "Question: What is the name of the dog?",
                                  "She opened the old box and found", "Tom has 3 apples."};

const GrammarSource& SourceOf(int index) {
  return kSources[static_cast<size_t>(index) % std::size(kSources)];
}

std::vector<Ask> MakeAsks(const LoadedModel& model, int first, int count) {
  std::vector<Ask> asks;
  for (int i = first; i < first + count; ++i) {
    const auto random = Philox4x32(11, {static_cast<uint32_t>(i), 0, 0, 0});
    Ask ask;
    ask.prompt = model.tokenizer->Encode(kTexts[random[0] % std::size(kTexts)], {});
    ask.sampling.grammar = SourceOf(i);
    ask.sampling.seed = i;
    ask.sampling.temperature = static_cast<float>(random[1] % 2000) * 1e-3F;
    if (i % 3 == 0) ask.sampling.top_p = 0.9F;
    ask.sampling.max_tokens = 300;
    ask.sampling.logprobs = 1;
    asks.push_back(std::move(ask));
  }
  return asks;
}

// What is wrong with an output of `source`, or nothing.
std::string Judge(const GrammarSource& source, const Answer& answer, const std::string& text) {
  if (!answer.error.empty()) return answer.error;
  if (answer.finish != FinishReason::kStop) return "it was cut";
  const auto grammar = CompiledGrammar::Compile(source, GrammarOptions::ForChecking());
  if (!grammar.ok()) return grammar.status().message();
  GrammarMatcher matcher(*grammar, nullptr, 0);
  if (matcher.AcceptText(text) != text.size() || !matcher.IsComplete())
    return "against its grammar";
  if (source.kind == Kind::kJsonSchema && !Json::Parse(text).ok()) return "no JSON";
  return "";
}

class Run {
 public:
  Run(LoadedModel* model, std::FILE* out) : model_(model), out_(out) {}

  // Returns the number of outputs that are wrong or differ.
  int Batch(int first, int count) {
    const std::vector<Ask> asks = MakeAsks(*model_, first, count);
    const std::vector<Answer> plain =
        RunAsks(model_, asks, {.name = "plain", .batch = true, .overlap = true, .slots = 16});
    int failures = 0;
    for (size_t i = 0; i < asks.size(); ++i) {
      const GrammarSource& source = SourceOf(first + static_cast<int>(i));
      const std::string text = TextOf(plain[i]);
      failures += Report("plain", source, text, Judge(source, plain[i], text));
      tokens += static_cast<int64_t>(plain[i].tokens.size());
      if (out_ != nullptr && source.kind == Kind::kJsonSchema) Write(source, text);
    }
    for (const StressMode& mode : Modes(first)) {
      const std::vector<Answer> answers = RunAsks(model_, asks, mode, plain);
      accepted += answers.front().drafts_accepted;
      for (size_t i = 0; i < asks.size(); ++i) {
        failures +=
            Report(mode.name, *asks[i].sampling.grammar, "", Difference(plain[i], answers[i]));
      }
    }
    return failures;
  }

  int64_t tokens = 0;
  int64_t accepted = 0;

 private:
  // With the draft layers always; the other ways in turn.
  static std::vector<StressMode> Modes(int first) {
    const StressMode others[] = {
        {.name = "n-gram", .batch = true, .overlap = true, .drafting = Drafting::kNgram},
        {.name = "replayed, preempted",
         .chunk = 7,
         .batch = true,
         .preempt = true,
         .overlap = true,
         .drafting = Drafting::kReplay,
         .test = {.delay_us_max = 100, .poison_host = true}},
        {.name = "serial, preempted", .batch = true, .preempt = true}};
    return {{.name = "draft layers", .batch = true, .overlap = true, .drafting = Drafting::kModel},
            others[static_cast<size_t>(first / kBatch) % std::size(others)]};
  }

  // Marks of reasoning are tokens of their own and part of it; the end is not.
  std::string TextOf(const Answer& answer) const {
    std::vector<TokenId> ids = answer.tokens;
    if (!ids.empty() && ids.back() == model_->tokenizer->eos_id()) ids.pop_back();
    return model_->tokenizer->Decode(ids, false);
  }

  static int Report(const char* mode, const GrammarSource& source, const std::string& text,
                    const std::string& fault) {
    if (fault.empty()) return 0;
    std::printf("%s: %s: %s\n  %s\n", mode, fault.c_str(), text.c_str(), source.text.c_str());
    return 1;
  }

  void Write(const GrammarSource& source, const std::string& text) {
    Json line = Json::Object();
    line.Set("schema", *Json::Parse(source.text));
    line.Set("output", Json::String(text));
    std::fprintf(out_, "%s\n", line.Dump().c_str());
  }

  LoadedModel* const model_;
  std::FILE* const out_;
};

int Main(int argc, char** argv) {
  int count = 0;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), count);
  if (argc < 2 || argc > 3 || count < 1) {
    std::fprintf(stderr, "usage: constrained COUNT [OUT.jsonl]\n");
    return 2;
  }
  LoadOptions options;
  options.path = "checkpoints/tiny-v41";
  options.backend.threads = 2;
  const Result<std::unique_ptr<LoadedModel>> model = OpenModel(options);
  std::FILE* out = argc > 2 ? std::fopen(argv[2], "wb") : nullptr;
  if (!model.ok() || (argc > 2 && out == nullptr)) {
    std::fprintf(stderr, "%s\n", model.ok() ? argv[2] : model.status().message().c_str());
    return 1;
  }
  Run run(model->get(), out);
  int failures = 0;
  for (int first = 0; first < count; first += kBatch) {
    failures += run.Batch(first, std::min(kBatch, count - first));
  }
  if (out != nullptr && std::fclose(out) != 0) ++failures;
  std::printf("%d outputs of %lld tokens, %lld drafts accepted, %d failures\n", count,
              static_cast<long long>(run.tokens), static_cast<long long>(run.accepted), failures);
  return failures == 0 && run.accepted > 0 ? 0 : 1;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Main(argc, argv); }
