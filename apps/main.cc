// Entry of the binary: finds the subcommand and hands over.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "apps/commands.h"
#include "deepinfer/version.h"

namespace deepinfer {

namespace {

void PrintHelp(std::FILE* out) {
  std::fprintf(out,
               "DeepInfer %s: language model inference on this machine.\n\n"
               "usage: deepinfer COMMAND [options]\n\ncommands:\n",
               kVersion);
  for (const Command& command : Commands()) {
    std::fprintf(out, "  %-10s %s\n", command.name, command.summary);
  }
  std::fprintf(out, "\nRun \"deepinfer COMMAND --help\" for its options.\n");
}

int Main(int argc, char** argv) {
  // A peer that leaves must not end the process; writes report EPIPE instead.
  std::signal(SIGPIPE, SIG_IGN);
  if (argc < 2) {
    PrintHelp(stderr);
    return kExitUsage;
  }
  const char* name = argv[1];
  if (std::strcmp(name, "--version") == 0 || std::strcmp(name, "version") == 0) {
    std::printf("deepinfer %s\n", kVersion);
    return kExitOk;
  }
  if (std::strcmp(name, "--help") == 0 || std::strcmp(name, "-h") == 0 ||
      std::strcmp(name, "help") == 0) {
    PrintHelp(stdout);
    return kExitOk;
  }
  for (const Command& command : Commands()) {
    if (std::strcmp(name, command.name) != 0) continue;
    std::string full_name = std::string("deepinfer ") + command.name;
    argv[1] = full_name.data();
    return command.run(argc - 1, argv + 1);
  }
  std::fprintf(stderr, "deepinfer: error: unknown command \"%.64s\"\n\n", name);
  PrintHelp(stderr);
  return kExitUsage;
}

}  // namespace

}  // namespace deepinfer

int main(int argc, char** argv) {
  // Libraries may report by exception; what reaches this point ends the process with a message.
  try {
    return deepinfer::Main(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "deepinfer: error: %s\n", failure.what());
    return deepinfer::kExitDevice;
  }
}
