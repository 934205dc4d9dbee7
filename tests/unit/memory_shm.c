/* SPDX-License-Identifier: MIT
 * Shared memory, first with untrusted descriptors. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/pages.h"
#include "memory/shm.h"
#include "memory/ticket.h"
#include "support/seams.h"

static const uint8_t nothing[16];

static int memfd(unsigned flags, off_t size, int seals) {
  int fd = memfd_create("test", MFD_CLOEXEC | flags);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, size), 0);
  if (seals)
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

static void refuse(int fd, size_t length) {
  struct shm shm;
  unsigned before = haul_mappings();
  assert_fails(HAUL_ETICKET, shm_attach(fd, length, nothing, &shm));
  assert_int_equal(haul_mappings(), before);
  if (fd >= 0)
    close(fd);
}

static void rejects_unsealed_descriptors(void **state) {
  (void)state;
  off_t size = (off_t)(2 * page_size());
  refuse(-1, 4096);
  refuse(open("/dev/null", O_RDWR | O_CLOEXEC), 4096);
  refuse(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 4096);
  refuse(memfd(MFD_ALLOW_SEALING, size, 0), 4096);
  refuse(memfd(MFD_ALLOW_SEALING, size, F_SEAL_GROW), 4096);
  refuse(memfd(0, size, 0), 4096);
}

static void rejects_impossible_lengths(void **state) {
  (void)state;
  off_t size = (off_t)(2 * page_size());
  const size_t lengths[] = {0, 4097, SIZE_MAX, SIZE_MAX - 4096, PTRDIFF_MAX};
  for (size_t i = 0; i < COUNT(lengths); i++)
    refuse(memfd(MFD_ALLOW_SEALING, size, F_SEAL_SHRINK), lengths[i]);
}

static void rejects_foreign_memory(void **state) {
  (void)state;
  refuse(memfd(MFD_ALLOW_SEALING, (off_t)(2 * page_size()), F_SEAL_SHRINK), 4096);
}

static void rejects_another_capability_or_length(void **state) {
  (void)state;
  struct shm own, other;
  assert_works(shm_create("haul-test", 3 * page_size(), &own));
  uint8_t capability[16];
  memcpy(capability, own.footer->capability, sizeof capability);
  own.footer->length = 2 * page_size();
  assert_fails(HAUL_ETICKET, shm_attach(own.fd, 3 * page_size(), capability, &other));
  own.footer->length = 3 * page_size();
  assert_fails(HAUL_ETICKET, shm_attach(own.fd, 2 * page_size(), capability, &other));
  capability[15] ^= 1;
  assert_fails(HAUL_ETICKET, shm_attach(own.fd, 3 * page_size(), capability, &other));
  shm_close(&own);
}

static void rejects_retired_memory(void **state) {
  (void)state;
  struct shm own, other;
  assert_works(shm_create("haul-test", 1, &own));
  shm_retire(&own);
  assert_fails(HAUL_ESTALE, shm_attach(own.fd, own.length, own.footer->capability, &other));
  shm_close(&own);
}

static void cannot_be_resized_or_sealed(void **state) {
  (void)state;
  struct shm shm;
  assert_works(shm_create("haul-test", page_size(), &shm));
  assert_int_equal(ftruncate(shm.fd, 0), -1);
  assert_int_equal(ftruncate(shm.fd, 1 << 20), -1);
  assert_int_equal(fcntl(shm.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
  struct stat file;
  assert_int_equal(fstat(shm.fd, &file), 0);
  assert_int_equal(file.st_mode & 0777, 0600);
  shm_close(&shm);
}

static void read_only_descriptors_cannot_write(void **state) {
  (void)state;
  struct shm shm, attached;
  void *view;
  int fd;
  assert_works(shm_create("haul-test", page_size(), &shm));
  assert_works(shm_descriptor(&shm, false, &fd));
  assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  assert_int_equal(pwrite(fd, "x", 1, 0), -1);
  assert_works(shm_attach(fd, shm.length, shm.footer->capability, &attached));
  assert_fails(HAUL_ETICKET, shm_map(fd, &attached, PROT_READ | PROT_WRITE, NULL, &view));
  assert_works(shm_map(fd, &attached, PROT_READ, NULL, &view));
  assert_int_equal(mprotect(view, attached.length, PROT_READ | PROT_WRITE), -1);
  munmap(view, attached.length);
  shm_close(&attached);
  close(fd);
  shm_close(&shm);
}

static void shows_the_same_bytes_everywhere(void **state) {
  (void)state;
  const size_t lengths[] = {1, page_size(), page_size() + 1, HUGE_PAGE, 3 * HUGE_PAGE + 5};
  for (size_t i = 0; i < COUNT(lengths); i++) {
    struct shm shm, attached;
    void *here, *there;
    int fd;
    assert_works(shm_create("haul-test", lengths[i], &shm));
    assert_true(shm.length >= lengths[i] && shm.length % page_size() == 0);
    assert_works(shm_descriptor(&shm, true, &fd));
    assert_works(shm_attach(fd, lengths[i], shm.footer->capability, &attached));
    assert_works(shm_map(shm.fd, &shm, PROT_READ | PROT_WRITE, NULL, &here));
    assert_works(shm_map(fd, &attached, PROT_READ, NULL, &there));
    assert_true(pages_aligned(here, shm.length) && pages_aligned(there, shm.length));
    pattern_fill(here, lengths[i], i);
    pattern_check(there, lengths[i], i);
    assert_int_equal(atomic_load(&attached.footer->alive), 1);
    shm_retire(&shm);
    assert_int_equal(atomic_load(&attached.footer->alive), 0);
    munmap(here, shm.length);
    munmap(there, shm.length);
    close(fd);
    shm_close(&attached);
    shm_close(&shm);
  }
}

static void maps_over_a_reservation(void **state) {
  (void)state;
  struct shm shm;
  void *view;
  assert_works(shm_create("haul-test", page_size(), &shm));
  char *space = pages_reserve(3 * page_size());
  assert_non_null(space);
  assert_works(shm_map(shm.fd, &shm, PROT_READ | PROT_WRITE, space + page_size(), &view));
  assert_ptr_equal(view, space + page_size());
  pattern_fill(view, page_size(), 1);
  munmap(space, 3 * page_size());
  shm_close(&shm);
}

static void clears_the_rest(void **state) {
  (void)state;
  struct shm shm;
  void *view;
  size_t length = 5 * page_size(), keep = page_size() + 100;
  assert_works(shm_create("haul-test", length, &shm));
  assert_works(shm_map(shm.fd, &shm, PROT_READ | PROT_WRITE, NULL, &view));
  pattern_fill(view, length, 4);
  assert_works(shm_clear_behind(&shm, keep));
  pattern_check(view, keep, 4);
  for (size_t i = keep; i < length; i++)
    assert_int_equal(((uint8_t *)view)[i], 0);
  munmap(view, length);
  shm_close(&shm);
}

/* Is the last byte, which was not 0, zeroed by an export of this length? */
static bool export_clears(struct shm *shm, uint8_t *bytes, size_t length, bool with_descriptor) {
  struct ticket ticket;
  int descriptor = -1;
  bytes[shm->length - 1] = 1;
  assert_works(shm_export(shm, length, HAUL_READ, &ticket, with_descriptor ? &descriptor : NULL));
  if (descriptor >= 0)
    close(descriptor);
  return bytes[shm->length - 1] == 0;
}

static void an_export_clears_the_rest_once(void **state) {
  (void)state;
  struct shm shm;
  void *view;
  size_t length = 5 * page_size(), keep = page_size() + 100;
  assert_works(shm_create("haul-test", length, &shm));
  assert_works(shm_map(shm.fd, &shm, PROT_READ | PROT_WRITE, NULL, &view));
  assert_false(export_clears(&shm, view, keep, false)); /* a ticket alone exposes nothing */
  assert_true(export_clears(&shm, view, keep, true));
  assert_false(export_clears(&shm, view, keep, true));
  assert_true(export_clears(&shm, view, keep - 1, true));
  munmap(view, length);
  shm_close(&shm);
}

static void dmabuf_works_or_has_a_reason(void **state) {
  (void)state;
  struct shm shm;
  int fd;
  assert_works(shm_create("haul-test", page_size(), &shm));
  if (shm_has_dmabuf()) {
    assert_works(shm_dmabuf(&shm, &fd));
    assert_int_equal(lseek(fd, 0, SEEK_END), page_size());
    close(fd);
  } else {
    assert_fails(HAUL_ENOTSUP, shm_dmabuf(&shm, &fd));
    assert_non_null(strstr(haul_error_last()->text, "/dev/udmabuf"));
    assert_non_null(strstr(haul_error_last()->hint, "sudo "));
  }
  shm_close(&shm);
}

static void every_failure_is_clean(void **state) {
  (void)state;
  unsigned descriptors = open_descriptors(), mappings = haul_mappings(), refusals = 0;
  for (unsigned n = 1;; n++) {
    struct shm shm;
    seams_refuse(n);
    int status = shm_create("haul-test", HUGE_PAGE, &shm);
    if (status == 0)
      shm_close(&shm);
    if (!seams_restore())
      break;
    refusals++;
    assert_true(status == HAUL_ENOMEM || status == HAUL_ELIMIT);
    assert_int_equal(shm.fd, -1);
    assert_int_equal(open_descriptors(), descriptors);
    assert_int_equal(haul_mappings(), mappings);
  }
  assert_int_equal(refusals, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rejects_unsealed_descriptors),
      cmocka_unit_test(rejects_impossible_lengths),
      cmocka_unit_test(rejects_foreign_memory),
      cmocka_unit_test(rejects_another_capability_or_length),
      cmocka_unit_test(rejects_retired_memory),
      cmocka_unit_test(cannot_be_resized_or_sealed),
      cmocka_unit_test(read_only_descriptors_cannot_write),
      cmocka_unit_test(shows_the_same_bytes_everywhere),
      cmocka_unit_test(maps_over_a_reservation),
      cmocka_unit_test(clears_the_rest),
      cmocka_unit_test(an_export_clears_the_rest_once),
      cmocka_unit_test(dmabuf_works_or_has_a_reason),
      cmocka_unit_test(every_failure_is_clean),
  };
  return cmocka_run_group_tests_name("memory/shm", tests, NULL, NULL);
}
