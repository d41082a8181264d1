// Flags of one subcommand, bound to variables. Order: the variable's own value < --config file <
// environment (DEEPINFER_MAX_NUM_SEQS for --max-num-seqs) < flags. Only command_line.cc includes
// the parser library. Used by one thread, once; bound variables must outlive Parse.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

class CommandLine {
 public:
  // `name` as argv[0] has it, for example "deepinfer serve".
  CommandLine(std::string name, std::string summary);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // `names`: "--port", "-p,--port" or a positional "model". The first long name is the key in the
  // config file and, in capitals, in the environment. A vector flag may be repeated.
  void Add(const std::string& names, std::string* value, const std::string& help);
  void Add(const std::string& names, int* value, const std::string& help);
  void Add(const std::string& names, int64_t* value, const std::string& help);
  void Add(const std::string& names, float* value, const std::string& help);
  void Add(const std::string& names, double* value, const std::string& help);
  void Add(const std::string& names, std::optional<std::string>* value, const std::string& help);
  void Add(const std::string& names, std::optional<int>* value, const std::string& help);
  void Add(const std::string& names, std::optional<int64_t>* value, const std::string& help);
  void Add(const std::string& names, std::optional<float>* value, const std::string& help);
  void Add(const std::string& names, std::vector<std::string>* value, const std::string& help);
  // Values may also follow one flag, as far as no other flag comes: --name A B.
  void AddList(const std::string& names, std::vector<std::string>* value, const std::string& help);
  // A switch: "--flag" sets it, "--no-flag" clears it, "--flag=false" works as well.
  void AddSwitch(const std::string& names, bool* value, const std::string& help);
  // One of `choices`; an empty choice stands for "not set" and is not listed.
  void AddChoice(const std::string& names, std::vector<std::string> choices, std::string* value,
                 const std::string& help);
  // A whole number or "auto", which is 0.
  void AddAuto(const std::string& names, int* value, const std::string& help);
  // A text that `parse` takes apart and `show` puts together again.
  void AddParsed(const std::string& names, const std::string& type_name,
                 std::function<Status(const std::string&)> parse, std::function<std::string()> show,
                 const std::string& help);
  // A size: 4096, 512MiB, 4G (binary multiples throughout).
  void AddBytes(const std::string& names, int64_t* value, const std::string& help);
  // Heads the following flags in --help.
  void Group(std::string title);
  // Values of this flag are never printed (--api-key).
  void MarkSecret(const std::string& long_name);
  // A second variable of the environment for this flag; the flag's own name wins.
  void AlsoFromEnvironment(const std::string& long_name, const std::string& variable);
  // Further text below the flags in --help.
  void Footer(std::string text);

  // Adds --config and --print-config. Without this call neither exists.
  void EnableConfigFile();

  // Returns an exit code when the process should end now: after --help (0), --print-config (0) or
  // a wrong flag or value (2, explained on stderr). Otherwise every bound variable is set.
  std::optional<int> Parse(int argc, char** argv);

  // After Parse: the flag was given anywhere (file, environment or flags).
  bool Given(const std::string& long_name) const;
  // The variables of the environment that stand for flags, for EnvWarnings.
  std::vector<std::string> EnvironmentNames() const;
  // After Parse: the effective values as YAML.
  std::string EffectiveConfig() const;

 private:
  struct Entry;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
