/* SPDX-License-Identifier: MIT */
#ifndef HAUL_TESTS_NIXL_REFUSAL_H
#define HAUL_TESTS_NIXL_REFUSAL_H

namespace test {

/* While one exists, `operator new` of the whole process, the plugin's too, throws bad_alloc at the
 * calls from the given one on: of this thread, or of all others. */
class Refusal {
public:
  enum Whose { HERE, ELSEWHERE };
  Refusal(Whose whose, long from);
  ~Refusal() {
    end();
  }
  Refusal(const Refusal &) = delete;
  Refusal &operator=(const Refusal &) = delete;

  /* Whether a call was refused. */
  bool end();
};

} // namespace test

#endif
