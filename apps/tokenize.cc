// `deepinfer tokenize`: text to token ids and back, without loading the weights.
#include <cstdio>
#include <optional>
#include <string>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/model_path.h"
#include "base/format.h"
#include "base/json.h"
#include "models/checkpoint.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

std::string ReadStandardInput() {
  std::string text;
  char chunk[65536];
  for (size_t n; (n = std::fread(chunk, 1, sizeof chunk, stdin)) > 0;) text.append(chunk, n);
  return text;
}

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model) {
  DI_ASSIGN(const std::string path, ResolveModelPath(model));
  DI_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  DI_ASSIGN(TokenizerSpec spec, checkpoint->TakeTokenizer());
  return Tokenizer::Create(std::move(spec));
}

Status PrintText(const Tokenizer& tokenizer, const std::string& ids_text) {
  DI_ASSIGN(const Json list, Json::Parse(ids_text));
  std::vector<TokenId> ids;
  for (const Json& item : list.items()) {
    DI_ASSIGN(const int64_t id, item.AsInt());
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return Invalid(Format("token id {} is outside 0..{}", id, tokenizer.vocab_size() - 1));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  if (!list.is_array()) return Invalid("token ids are a JSON list: [1, 2, 3]");
  const std::string text = tokenizer.Decode(ids, false);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  return {};
}

void PrintIds(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, const Json* out) {
  if (out != nullptr) {
    std::printf("%s\n", out->Dump().c_str());
    return;
  }
  for (TokenId id : ids) {
    std::string shown;
    AppendJsonString(&shown, tokenizer.Bytes(id));
    std::printf("%7d  %s\n", id, shown.c_str());
  }
  std::printf("%zu tokens\n", ids.size());
}

}  // namespace

int RunTokenize(int argc, char** argv) {
  std::string model, decode;
  std::optional<std::string> prompt;
  bool as_json = false;
  bool specials = true;
  CommandLine line("deepinfer tokenize", "text to token ids and back");
  line.Add("--model,-m", &model, "model name, directory or file; empty: the default model");
  line.Add("--prompt,-p,prompt", &prompt, "the text; without it standard input is read");
  line.Add("--decode", &decode, "JSON list of ids: print their text instead");
  line.AddSwitch("--add-special-tokens", &specials,
                 "put BOS and EOS where the tokenizer wants them");
  line.AddSwitch("--json", &as_json, "print {\"count\", \"tokens\"}");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (!decode.empty() && (prompt.has_value() || as_json || line.Given("add-special-tokens"))) {
    return FailUsage("tokenize", Invalid("--decode prints the text of its ids: it goes with none "
                                         "of --prompt, --json and --add-special-tokens"));
  }
  const Result<std::unique_ptr<Tokenizer>> tokenizer = OpenTokenizer(model);
  if (!tokenizer.ok()) return Fail("tokenize", tokenizer.status());
  if (!decode.empty()) {
    const Status status = PrintText(**tokenizer, decode);
    return status.ok() ? kExitOk : Fail("tokenize", status);
  }
  const std::string text = prompt.has_value() ? *prompt : ReadStandardInput();
  EncodeOptions options;
  options.add_special_tokens = specials;
  const std::vector<TokenId> ids = (*tokenizer)->Encode(text, options);
  Json out = Json::Object();
  out.Set("count", Json::Int(static_cast<int64_t>(ids.size())));
  Json& tokens = out.Set("tokens", Json::Array());
  for (TokenId id : ids) tokens.Push(Json::Int(id));
  PrintIds(**tokenizer, ids, as_json ? &out : nullptr);
  return kExitOk;
}

}  // namespace deepinfer
