// Products of the AMX files, for the table of their ISA.
#pragma once

#include "backend/cpu/packed_layout.h"

namespace deepinfer::cpu {

void ProductBF16Amx(const ProductArgs& args);
void ProductQ8_0Amx(const ProductArgs& args);
void ProductQ4_0Amx(const ProductArgs& args);
void ProductQ4_1Amx(const ProductArgs& args);
void ProductQ5_0Amx(const ProductArgs& args);
void ProductQ5_1Amx(const ProductArgs& args);
void ProductQ4KAmx(const ProductArgs& args);
void ProductQ5KAmx(const ProductArgs& args);
void ProductMXFP4Amx(const ProductArgs& args);

}  // namespace deepinfer::cpu
