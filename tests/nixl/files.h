/* SPDX-License-Identifier: MIT */
#ifndef HAUL_TEST_NIXL_FILES_H
#define HAUL_TEST_NIXL_FILES_H

#include "agent.h"

namespace test {

void test_files(const Parameters &parameters);

/* With memory of a GPU. */
void test_files_gpu(Agent &agent, size_t host, size_t gpu, size_t length);

/* With a file system of 1 MiB; ends the process. */
void be_full(const Parameters &parameters);

/* What `use` says on standard error. */
template <typename Use> std::string said_by(const Use &use) {
  FILE *file = tmpfile();
  int old = dup(STDERR_FILENO);
  CHECK(file && old >= 0);
  dup2(fileno(file), STDERR_FILENO);
  use();
  dup2(old, STDERR_FILENO);
  close(old);
  char text[8192] = "";
  CHECK(pread(fileno(file), text, sizeof text - 1, 0) >= 0);
  fclose(file);
  return text;
}

} // namespace test

#endif
