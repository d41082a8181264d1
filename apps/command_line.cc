#include "apps/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>

#include "apps/commands.h"
#include "apps/config_file.h"
#include "base/env.h"
#include "base/format.h"

namespace deepinfer {

namespace {

using Values = std::vector<std::string>;

template <typename T>
const char* KindName() {
  if constexpr (std::is_integral_v<T>) {
    return "a whole number";
  } else {
    return "a number";
  }
}

template <typename T>
Status ParseNumber(const std::string& text, T* value) {
  T parsed{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  if (error == std::errc::result_out_of_range) {
    return Invalid(Format("{} is out of range for this flag", text));
  }
  bool wrong = error != std::errc() || stop != end;
  if constexpr (std::is_floating_point_v<T>) wrong = wrong || !std::isfinite(parsed);
  if (wrong) return Invalid(Format("\"{}\" is not {}", text, KindName<T>()));
  *value = parsed;
  return {};
}

Status ParseSwitch(const std::string& text, bool* value) {
  for (const char* word : {"true", "1", "yes", "on"}) {
    if (text == word) {
      *value = true;
      return {};
    }
  }
  for (const char* word : {"false", "0", "no", "off"}) {
    if (text == word) {
      *value = false;
      return {};
    }
  }
  return Invalid(Format("\"{}\" is not true or false", text));
}

// "4GiB", "4GB" and "4G" are all 4 * 2^30.
Status ParseBytes(const std::string& text, int64_t* value) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  int64_t number = 0;
  DI_TRY(ParseNumber(text.substr(0, digits), &number));
  std::string unit = text.substr(digits);
  if (unit.size() >= 2 && unit.back() == 'B') unit.pop_back();
  if (unit.size() == 2 && unit.back() == 'i') unit.pop_back();
  constexpr std::string_view kUnits = "KMGT";
  int shift = 0;
  if (!unit.empty() && unit != "B") {
    const size_t place = unit.size() == 1 ? kUnits.find(unit[0]) : std::string_view::npos;
    if (place == std::string_view::npos) {
      return Invalid(Format("\"{}\" is not a size such as 4096, 512MiB or 4GiB", text));
    }
    shift = 10 * (static_cast<int>(place) + 1);
  }
  if (number > (INT64_MAX >> shift)) return Invalid(Format("{} is out of range", text));
  *value = number << shift;
  return {};
}

std::string EnvironmentName(const std::string& key) {
  std::string name = "DEEPINFER_";
  for (const char c : key) {
    name.push_back(c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  }
  return name;
}

// "-m,--model" -> "model"; a positional "model" -> "model".
std::string KeyOf(const std::string& names) {
  size_t begin = names.find("--");
  begin = begin == std::string::npos ? 0 : begin + 2;
  const size_t end = names.find(',', begin);
  return names.substr(begin, end == std::string::npos ? end : end - begin);
}

std::string YamlQuoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (c == '\n') {
      out += "\\n";
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

}  // namespace

struct CommandLine::Entry {
  std::string key;
  CLI::Option* option = nullptr;
  std::vector<std::string> variables;  // of the environment, the first that is set counts
  bool secret = false;
  bool given = false;
  std::function<Status(const Values&)> set;
  std::function<std::string()> show;  // as YAML; empty: unset
};

struct CommandLine::Impl {
  explicit Impl(const std::string& summary, const std::string& name) : app(summary, name) {
    app.option_defaults()->group("Options");
    app.get_formatter()->column_width(44);
  }

  template <typename T>
  Entry* Bind(const std::string& names, const std::string& help,
              std::function<Status(const Values&)> set, std::function<std::string()> show,
              int values_max) {
    auto entry = std::make_unique<Entry>();
    entry->key = KeyOf(names);
    entry->variables = {EnvironmentName(entry->key)};
    entry->option = app.add_option(names, help);
    entry->option->type_name(std::is_same_v<T, std::string> ? "TEXT"
                             : std::is_integral_v<T>        ? "INT"
                                                            : "NUMBER");
    entry->option->expected(1, values_max);
    entry->option->group(group);
    if (values_max == 1) {
      entry->option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    } else {
      entry->option->allow_extra_args(false);
      entry->option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    entry->set = std::move(set);
    entry->show = std::move(show);
    entries.push_back(std::move(entry));
    return entries.back().get();
  }

  template <typename T>
  void BindNumber(const std::string& names, T* value, const std::string& help) {
    Entry* entry = Bind<T>(
        names, help, [value](const Values& values) { return ParseNumber(values.back(), value); },
        [value] { return Format("{}", *value); }, 1);
    entry->option->default_str(Format("{}", *value));
  }

  template <typename T>
  void BindOptional(const std::string& names, std::optional<T>* value, const std::string& help) {
    Bind<T>(
        names, help,
        [value](const Values& values) {
          T parsed{};
          DI_TRY(ParseNumber(values.back(), &parsed));
          *value = parsed;
          return Status();
        },
        [value] { return value->has_value() ? Format("{}", **value) : std::string(); }, 1);
  }

  Entry* Find(const std::string& key) {
    for (const auto& entry : entries) {
      if (entry->key == key) return entry.get();
    }
    return nullptr;
  }

  // The strongest source that has the flag, and its name for messages.
  Values ValuesOf(const Entry& entry, const std::map<std::string, Values>& file,
                  std::string* origin) const {
    if (entry.option->count() > 0) {
      *origin = entry.option->get_lnames().empty() ? entry.key : "--" + entry.key;
      return entry.option->reduced_results();
    }
    for (const std::string& variable : entry.variables) {
      if (std::optional<std::string> value = GetEnv(variable)) {
        *origin = variable;
        return {*value};
      }
    }
    if (const auto found = file.find(entry.key); found != file.end()) {
      *origin = Format("{}: {}", config_path, entry.key);
      return found->second;
    }
    return {};
  }

  CLI::App app;
  std::string group = "Options";
  std::vector<std::unique_ptr<Entry>> entries;
  bool config_enabled = false;
  std::string config_path;
  bool print_config = false;
};

CommandLine::CommandLine(std::string name, std::string summary)
    : impl_(std::make_unique<Impl>(summary, name)) {}
CommandLine::~CommandLine() = default;

void CommandLine::Add(const std::string& names, std::string* value, const std::string& help) {
  Entry* entry = impl_->Bind<std::string>(
      names, help,
      [value](const Values& values) {
        *value = values.back();
        return Status();
      },
      [value] { return YamlQuoted(*value); }, 1);
  entry->option->default_str(*value);
}

void CommandLine::Add(const std::string& names, std::optional<std::string>* value,
                      const std::string& help) {
  impl_->Bind<std::string>(
      names, help,
      [value](const Values& values) {
        *value = values.back();
        return Status();
      },
      [value] { return value->has_value() ? YamlQuoted(**value) : std::string(); }, 1);
}

void CommandLine::Add(const std::string& names, std::vector<std::string>* value,
                      const std::string& help) {
  impl_->Bind<std::string>(
      names, help,
      [value](const Values& values) {
        *value = values;
        return Status();
      },
      [value] {
        std::string out;
        for (const std::string& item : *value) out += (out.empty() ? "[" : ", ") + YamlQuoted(item);
        return out.empty() ? out : out + "]";
      },
      1 << 20);
}

void CommandLine::AddList(const std::string& names, std::vector<std::string>* value,
                          const std::string& help) {
  Add(names, value, help);
  impl_->entries.back()->option->allow_extra_args(true)->type_name("TEXT ...");
}

void CommandLine::Add(const std::string& names, int* value, const std::string& help) {
  impl_->BindNumber(names, value, help);
}
void CommandLine::Add(const std::string& names, int64_t* value, const std::string& help) {
  impl_->BindNumber(names, value, help);
}
void CommandLine::Add(const std::string& names, float* value, const std::string& help) {
  impl_->BindNumber(names, value, help);
}
void CommandLine::Add(const std::string& names, double* value, const std::string& help) {
  impl_->BindNumber(names, value, help);
}
void CommandLine::Add(const std::string& names, std::optional<int>* value,
                      const std::string& help) {
  impl_->BindOptional(names, value, help);
}
void CommandLine::Add(const std::string& names, std::optional<int64_t>* value,
                      const std::string& help) {
  impl_->BindOptional(names, value, help);
}
void CommandLine::Add(const std::string& names, std::optional<float>* value,
                      const std::string& help) {
  impl_->BindOptional(names, value, help);
}

void CommandLine::AddSwitch(const std::string& names, bool* value, const std::string& help) {
  auto entry = std::make_unique<Entry>();
  entry->key = KeyOf(names);
  entry->variables = {EnvironmentName(entry->key)};
  entry->option = impl_->app.add_flag(names + ",!--no-" + entry->key, help);
  entry->option->group(impl_->group);
  entry->option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  entry->set = [value](const Values& values) { return ParseSwitch(values.back(), value); };
  entry->show = [value] { return std::string(*value ? "true" : "false"); };
  impl_->entries.push_back(std::move(entry));
}

void CommandLine::AddChoice(const std::string& names, std::vector<std::string> choices,
                            std::string* value, const std::string& help) {
  std::string list;
  for (const std::string& choice : choices) {
    if (!choice.empty()) list += (list.empty() ? "" : ", ") + choice;
  }
  Entry* entry = impl_->Bind<std::string>(
      names, Format("{}: {}", help, list),
      [value, choices = std::move(choices), list](const Values& values) {
        for (const std::string& choice : choices) {
          if (choice != values.back()) continue;
          *value = choice;
          return Status();
        }
        return Invalid(Format("\"{}\" is none of {}", values.back(), list));
      },
      [value] { return *value; }, 1);
  entry->option->default_str(*value);
}

void CommandLine::AddAuto(const std::string& names, int* value, const std::string& help) {
  Entry* entry = impl_->Bind<int>(
      names, help,
      [value](const Values& values) {
        if (values.back() != "auto") return ParseNumber(values.back(), value);
        *value = 0;
        return Status();
      },
      [value] { return *value == 0 ? std::string("auto") : Format("{}", *value); }, 1);
  entry->option->type_name("auto|INT")->default_str(entry->show());
}

void CommandLine::AddParsed(const std::string& names, const std::string& type_name,
                            std::function<Status(const std::string&)> parse,
                            std::function<std::string()> show, const std::string& help) {
  Entry* entry = impl_->Bind<std::string>(
      names, help,
      [parse = std::move(parse)](const Values& values) { return parse(values.back()); },
      [show = std::move(show)] { return YamlQuoted(show()); }, 1);
  entry->option->type_name(type_name);
}

void CommandLine::AddBytes(const std::string& names, int64_t* value, const std::string& help) {
  Entry* entry = impl_->Bind<int64_t>(
      names, help, [value](const Values& values) { return ParseBytes(values.back(), value); },
      [value] { return Format("{}", *value); }, 1);
  entry->option->type_name("SIZE")->default_str(entry->show());
}

void CommandLine::Group(std::string title) { impl_->group = std::move(title); }

void CommandLine::MarkSecret(const std::string& long_name) {
  if (Entry* entry = impl_->Find(long_name)) entry->secret = true;
}

void CommandLine::AlsoFromEnvironment(const std::string& long_name, const std::string& variable) {
  if (Entry* entry = impl_->Find(long_name)) entry->variables.push_back(variable);
}

std::vector<std::string> CommandLine::EnvironmentNames() const {
  std::vector<std::string> names;
  for (const auto& entry : impl_->entries) {
    names.insert(names.end(), entry->variables.begin(), entry->variables.end());
  }
  return names;
}

void CommandLine::Footer(std::string text) { impl_->app.footer(std::move(text)); }

void CommandLine::EnableConfigFile() {
  impl_->config_enabled = true;
  impl_->app.add_option("--config", impl_->config_path, "YAML file with flag names as keys")
      ->type_name("FILE")
      ->group("Configuration");
  impl_->app
      .add_flag("--print-config", impl_->print_config,
                "print the effective values as YAML and exit")
      ->group("Configuration");
}

namespace {

int UsageError(const CLI::App& app, const std::string& message) {
  std::fprintf(stderr, "%s: error: %s\nTry \"%s --help\".\n", app.get_name().c_str(),
               message.c_str(), app.get_name().c_str());
  return kExitUsage;
}

}  // namespace

std::optional<int> CommandLine::Parse(int argc, char** argv) {
  CLI::App& app = impl_->app;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error.what());
  }
  std::map<std::string, Values> file;
  if (!impl_->config_path.empty()) {
    Result<std::map<std::string, Values>> read = ReadConfigFile(impl_->config_path);
    if (!read.ok()) return UsageError(app, read.status().message());
    file = std::move(read).value();
    for (const auto& [key, values] : file) {
      if (impl_->Find(key) == nullptr) {
        return UsageError(app, Format("{}: unknown key \"{}\"; keys are flag names without dashes",
                                      impl_->config_path, key));
      }
    }
  }
  for (const auto& entry : impl_->entries) {
    std::string origin;
    const Values values = impl_->ValuesOf(*entry, file, &origin);
    if (values.empty()) continue;
    entry->given = true;
    if (Status status = entry->set(values); !status.ok()) {
      return UsageError(app, Format("{}: {}", origin, status.message()));
    }
  }
  if (impl_->print_config) {
    std::fputs(EffectiveConfig().c_str(), stdout);
    return kExitOk;
  }
  return std::nullopt;
}

bool CommandLine::Given(const std::string& long_name) const {
  const Entry* entry = impl_->Find(long_name);
  return entry != nullptr && entry->given;
}

std::string CommandLine::EffectiveConfig() const {
  std::string out;
  for (const auto& entry : impl_->entries) {
    const std::string shown = entry->show();
    if (shown.empty()) continue;
    out += Format("{}: {}\n", entry->key, entry->secret ? "\"(hidden)\"" : shown);
  }
  return out;
}

}  // namespace deepinfer
