// The tokenizer of DeepSeek V4 with the names of V4.1, put together from the reference data.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace deepinfer {

TokenizerSpec DeepseekTokenizerSpec();
// Built once for the program.
const Tokenizer& DeepseekTokenizer();

}  // namespace deepinfer
