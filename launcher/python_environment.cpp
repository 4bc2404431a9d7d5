#include "python_environment.hpp"

#include <sstream>

namespace lockstep::launcher {

namespace {

// Prints "name=value" lines. Versions come from the packages' metadata: to import them would take seconds.
constexpr const char* kQuestion = R"(
import importlib.metadata, platform, sys
def show(name, value): print(name + "=" + str(value).replace("\n", " "))
def version(name):
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return ""
show("python", platform.python_version())
show("executable", sys.executable)
show("torch", version("torch"))
show("tensorflow", version("tensorflow") or version("tensorflow-cpu"))
try:
    import lockstep
    show("lockstep", lockstep.__version__)
    from lockstep import _library
    show("library", _library.find())
except ImportError as error:
    show("library_error", error)
)";

}  // namespace

std::vector<std::string> python_question() { return {"python3", "-c", kQuestion}; }

PythonEnvironment read_python_answer(const CommandResult& answer) {
  PythonEnvironment result;
  if (!answer.ok()) return result;
  std::istringstream lines(answer.output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = line.substr(0, equals);
    const std::string value = line.substr(equals + 1);
    if (name == "python") result.python = value;
    if (name == "executable") result.executable = value;
    if (name == "torch") result.torch = value;
    if (name == "tensorflow") result.tensorflow = value;
    if (name == "lockstep") result.lockstep = value;
    if (name == "library") result.library = value;
    if (name == "library_error") result.library_error = value;
  }
  return result;
}

}  // namespace lockstep::launcher
