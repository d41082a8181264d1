#include "apps/commands.h"

#include <cstdio>
#include <cstring>

namespace deepinfer {

namespace {

constexpr Command kCommands[] = {
    {"generate", "generate text offline", RunGenerate},
    {"batch", "answer a file of API requests offline", RunBatch},
    {"chat", "talk to a model in the terminal", RunChat},
    {"serve", "serve a model over HTTP", RunServe},
    {"bench", "measure latency, throughput or a server", RunBench},
    {"doctor", "show what this machine offers", RunDoctor},
    {"tokenize", "turn text into token ids", RunTokenize},
    {"grammar", "check schemas and what keeps to them", RunGrammar},
    {"model", "list, pull, inspect, quantize models", RunModel},
};

int PrintCommands(const char* name, std::span<const Command> commands, std::FILE* out, int code) {
  std::fprintf(out, "usage: %s COMMAND [flags]\n\n", name);
  for (const Command& command : commands) {
    std::fprintf(out, "  %-12s %s\n", command.name, command.summary);
  }
  return code;
}

}  // namespace

int Dispatch(const char* name, std::span<const Command> commands, int argc, char** argv) {
  if (argc < 2) return PrintCommands(name, commands, stderr, kExitUsage);
  for (const Command& command : commands) {
    if (std::strcmp(argv[1], command.name) == 0) return command.run(argc - 1, argv + 1);
  }
  if (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0) {
    return PrintCommands(name, commands, stdout, kExitOk);
  }
  std::fprintf(stderr, "%s: unknown command '%s'\n", name, argv[1]);
  return PrintCommands(name, commands, stderr, kExitUsage);
}

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

int FailUsage(const char* command, const Status& status) {
  (void)Fail(command, status);
  return kExitUsage;
}

}  // namespace deepinfer
