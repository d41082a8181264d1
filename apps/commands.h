// The subcommands of the one binary. Each lives in apps/<name>.cc and has one row in
// apps/commands.cc. argv[0] is "deepinfer <name>"; the return value is the exit code of the
// process.
#pragma once

#include <span>

#include "deepinfer/status.h"

namespace deepinfer {

// Exit codes, equal for every subcommand.
enum ExitCode : int {
  kExitOk = 0,
  kExitInput = 1,   // bad input or model
  kExitUsage = 2,   // unknown flag, bad value of a flag
  kExitDevice = 3,  // the device or the machine failed
};

struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, char** argv);
};

// Runs the command of `commands` that argv[1] names, with argv moved on by one; without one, or
// with
// --help, prints the list. `name` is how the user called it ("deepinfer bench").
int Dispatch(const char* name, std::span<const Command> commands, int argc, char** argv);

// In the order that help prints them.
std::span<const Command> Commands();

// 0 for ok; kInternal is a device fault, everything else is bad input.
int ExitCodeOf(const Status& status);

// Prints "COMMAND: error: message (param)" to stderr and returns ExitCodeOf(status).
int Fail(const char* command, const Status& status);

// The same for a flag whose value is out of range: returns kExitUsage.
int FailUsage(const char* command, const Status& status);

int RunServe(int argc, char** argv);
int RunGenerate(int argc, char** argv);
int RunBatch(int argc, char** argv);
int RunChat(int argc, char** argv);
int RunBench(int argc, char** argv);
int RunDoctor(int argc, char** argv);
int RunTokenize(int argc, char** argv);
int RunModel(int argc, char** argv);
int RunGrammar(int argc, char** argv);

}  // namespace deepinfer
