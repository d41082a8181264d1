#include "tests/prompts/deepseek_tokenizer.h"

#include "base/check.h"
#include "base/format.h"
#include "text/reference_data.h"

namespace deepinfer {

TokenizerSpec DeepseekTokenizerSpec() {
  TokenizerSpec spec = ReadReferenceSpec("deepseek_v3");
  const Json json = ReadReferenceJson("../prompts/deepseek_added.json");
  spec.added.clear();
  for (const Json& token : json.Find("named")->items()) {
    const std::vector<Json>& row = token.items();
    AddedToken added;
    added.id = static_cast<TokenId>(*row[0].AsInt());
    added.content = row[1].string();
    added.special = *row[2].AsInt() != 0;
    added.normalized = *row[3].AsInt() != 0;
    spec.added.push_back(std::move(added));
  }
  for (const Json& run : json.Find("place_holders")->items()) {
    const int64_t first = *run.items()[0].AsInt(), number = *run.items()[2].AsInt();
    for (int64_t id = first; id <= *run.items()[1].AsInt(); ++id) {
      AddedToken added;
      added.id = static_cast<TokenId>(id);
      added.content = Format("<｜place▁holder▁no▁{}｜>", number + id - first);
      added.special = true;
      spec.added.push_back(std::move(added));
    }
  }
  spec.bos_id = 0;
  spec.eos_id = 1;
  return spec;
}

const Tokenizer& DeepseekTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    Result<std::unique_ptr<Tokenizer>> made = Tokenizer::Create(DeepseekTokenizerSpec());
    DI_CHECK(made.ok(), "{}", made.status().message());
    return std::move(made).value();
  }();
  return *tokenizer;
}

}  // namespace deepinfer
