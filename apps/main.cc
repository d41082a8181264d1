// Entry of the binary: finds the subcommand and hands over.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
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

// A parent may start us without standard streams. The next file opened would take their place and
// get our output; so something harmless does: reads see the end, writes fail.
void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int mode = fd == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", mode) < 0) std::_Exit(kExitDevice);  // the lowest free one: fd
  }
}

// A page of a mapped file that cannot be read: the only way the kernel has to say so.
[[noreturn]] void OnBusError(int) {
  constexpr char kMessage[] =
      "deepinfer: error: a mapped file could not be read: it was cut short while in use, or its "
      "disk failed. Replace model files by renaming, never in place; then start again.\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  std::_Exit(kExitInput);
}

// What no thread caught.
[[noreturn]] void OnTerminate() {
  const char* what = "unknown exception";
  try {
    if (const std::exception_ptr current = std::current_exception()) {
      std::rethrow_exception(current);
    }
  } catch (const std::bad_alloc&) {
    what = "out of memory: lower --kv-cache-memory-bytes or --max-num-seqs, or raise the limit";
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "deepinfer: error: %s\n", failure.what());
    std::_Exit(kExitDevice);
  } catch (...) {
  }
  std::fprintf(stderr, "deepinfer: error: %s\n", what);
  std::_Exit(kExitDevice);
}

// What was printed must have arrived for a command to have succeeded.
int WithOutputChecked(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code != kExitOk) return code;  // it has said why
  std::fprintf(stderr, "deepinfer: error: standard output could not be written\n");
  return kExitInput;
}

int Main(int argc, char** argv) {
  OpenStandardStreams();
  std::signal(SIGBUS, OnBusError);
  std::set_terminate(OnTerminate);
  // A peer that leaves must not end the process; writes report EPIPE instead.
  std::signal(SIGPIPE, SIG_IGN);
  if (argc < 2) {
    PrintHelp(stderr);
    return kExitUsage;
  }
  const char* name = argv[1];
  if (std::strcmp(name, "--version") == 0 || std::strcmp(name, "version") == 0) {
    std::printf("deepinfer %s\n", kVersion);
    return WithOutputChecked(kExitOk);
  }
  if (std::strcmp(name, "--help") == 0 || std::strcmp(name, "-h") == 0 ||
      std::strcmp(name, "help") == 0) {
    PrintHelp(stdout);
    return WithOutputChecked(kExitOk);
  }
  for (const Command& command : Commands()) {
    if (std::strcmp(name, command.name) != 0) continue;
    std::string full_name = std::string("deepinfer ") + command.name;
    argv[1] = full_name.data();
    return WithOutputChecked(command.run(argc - 1, argv + 1));
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
  } catch (...) {
    deepinfer::OnTerminate();
  }
}
