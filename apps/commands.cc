#include "apps/commands.h"

#include <cstdio>

namespace deepinfer {

namespace {

constexpr Command kCommands[] = {
    {"generate", "generate text offline", RunGenerate},
    {"chat", "talk to a model in the terminal", RunChat},
    {"serve", "serve a model over HTTP", RunServe},
    {"bench", "measure latency, throughput or a server", RunBench},
    {"doctor", "show what this machine offers", RunDoctor},
    {"tokenize", "turn text into token ids", RunTokenize},
};

}  // namespace

std::span<const Command> Commands() { return kCommands; }

int ExitCodeOf(const Status& status) {
  if (status.ok()) return kExitOk;
  return status.code() == StatusCode::kInternal ? kExitDevice : kExitInput;
}

int Fail(const char* command, const Status& status) {
  std::fprintf(stderr, "%s: error: %s%s%s%s\n", command, status.message().c_str(),
               status.param().empty() ? "" : " (", status.param().c_str(),
               status.param().empty() ? "" : ")");
  return ExitCodeOf(status);
}

}  // namespace deepinfer
