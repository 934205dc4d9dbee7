/* SPDX-License-Identifier: MIT */
#include "options.h"

#include <charconv>
#include <stdexcept>

namespace haul_nixl {

static std::invalid_argument invalid(const std::string &name, const std::string &value,
                                     const char *expected) {
  return std::invalid_argument("invalid " + name + "=" + value + ": expected " + expected);
}

static double number_of(const std::string &name, const std::string &value, double most,
                        const char *expected) {
  double number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !(number > 0) || number > most)
    throw invalid(name, value, expected);
  return number;
}

static bool flag_of(const std::string &name, const std::string &value) {
  if (value != "0" && value != "1")
    throw invalid(name, value, "0 or 1");
  return value == "1";
}

static std::vector<std::string> words_of(const std::string &value) {
  std::vector<std::string> words;
  for (size_t at = 0; at < value.size();) {
    size_t end = std::min(value.find(',', at), value.size());
    words.push_back(value.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/* SGLang and LMCache pass these words of their own configuration on to each backend. */
static bool is_of_framework(const std::string &name) {
  return name == "active" || name == "file_path" || name == "use_direct_io" || name == "shard_dirs";
}

Parameters Options::defaults() {
  return {{"paths", ""},  {"rails", ""},     {"key", ""},     {"zero_copy", "0"},
          {"listen", ""}, {"insecure", "0"}, {"deadline", ""}};
}

Options::Options(const Parameters &parameters) {
  for (const auto &[name, value] : parameters) {
    if (is_of_framework(name))
      continue;
    if (!defaults().contains(name))
      throw std::invalid_argument("unknown parameter " + name +
                                  " (hint: haul-nixl(7) lists the parameters)");
    if (value.empty())
      continue;
    if (name == "paths")
      paths = value;
    else if (name == "key")
      key = value;
    else if (name == "listen")
      listen = words_of(value);
    else if (name == "rails")
      rails = static_cast<unsigned>(number_of(name, value, 16, "1 to 16"));
    else if (name == "deadline")
      deadline_ns = static_cast<int64_t>(
          1e9 * number_of(name, value, 1e9, "seconds greater than 0, for example 0.5"));
    else if (name == "zero_copy")
      zero_copy = flag_of(name, value);
    else
      insecure = flag_of(name, value);
  }
}

} // namespace haul_nixl
