/* SPDX-License-Identifier: MIT
 * The emulated accelerator: settings, addresses, engine. */
#include "support/check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/futex.h"
#include "core/sys.h"
#include "memory/copy.h"
#include "memory/provider.h"
#include "memory/shm.h"
#include "support/child.h"
#include "support/copying.h"
#include "support/seams.h"

#define MIB ((size_t)1 << 20)
#define MS  INT64_C(1000000)

static const struct haul_place host = {HAUL_HOST, 0}, sim0 = {HAUL_SIM, 0}, sim1 = {HAUL_SIM, 1};

static const char *const variables[] = {"HAUL_SIM_DEVICES", "HAUL_SIM_BANDWIDTH",
                                        "HAUL_SIM_LATENCY_NS", "HAUL_SIM_MEMORY"};

/* Starts the providers with these settings; NULL: not set. */
static void start(const char *devices, const char *bandwidth, const char *latency,
                  const char *memory) {
  const char *values[] = {devices, bandwidth, latency, memory};
  for (size_t i = 0; i < COUNT(variables); i++)
    if (values[i])
      setenv(variables[i], values[i], 1);
    else
      unsetenv(variables[i]);
  assert_works(providers_start());
}

static unsigned devices(void) {
  return provider_devices(provider_of(HAUL_SIM));
}

static struct memory get(struct haul_place place, size_t length) {
  struct memory memory;
  assert_works(memory_alloc(place, length, 0, &memory));
  return memory;
}

static void bad_settings_leave_no_devices_with_a_reason(void **state) {
  (void)state;
  const char *bad[] = {"", "17", "-1", "1x", " 1", "0x1", "99999999999999999999999"};
  for (size_t i = 0; i < COUNT(bad); i++) {
    struct memory memory;
    start(bad[i], NULL, NULL, NULL);
    assert_int_equal(devices(), 0);
    assert_fails(HAUL_EPLACE, memory_alloc(sim0, 1, 0, &memory));
    assert_non_null(strstr(haul_error_last()->text, "HAUL_SIM_DEVICES"));
    struct haul_check checks[4];
    provider_of(HAUL_SIM)->checks(checks, 4);
    assert_int_equal(checks[0].state, HAUL_CHECK_MISSING);
    assert_string_equal(checks[0].remedy, "unset HAUL_SIM_DEVICES");
    memory = get(host, 1); /* other kinds work */
    memory_free(&memory);
    providers_stop();
  }
  for (size_t i = 1; i < COUNT(variables); i++) {
    setenv(variables[i], "fast", 1);
    assert_works(providers_start());
    assert_int_equal(devices(), 0);
    providers_stop();
    unsetenv(variables[i]);
  }
}

static void settings_set_the_number_of_devices(void **state) {
  (void)state;
  start("0", NULL, NULL, NULL);
  assert_int_equal(devices(), 0);
  providers_stop();
  start(NULL, NULL, NULL, NULL);
  assert_int_equal(devices(), 1);
  providers_stop();
  assert_int_equal(devices(), 0);
  start("16", NULL, NULL, NULL);
  assert_int_equal(devices(), 16);
  assert_works(providers_start());
  providers_stop();
  assert_int_equal(devices(), 16); /* counted */
  providers_stop();
}

static void devices_are_reported_as_emulated(void **state) {
  (void)state;
  start("1", NULL, NULL, "123456");
  struct haul_device device = {.memory = 0};
  const struct provider *provider = provider_of(HAUL_SIM);
  assert_true(provider->emulated);
  provider->describe(0, &device);
  assert_int_equal(device.emulated, 1);
  assert_int_equal(device.memory, 123456);
  assert_non_null(strstr(device.name, "emulated"));
  providers_stop();
}

static struct haul_check check_of_dmabuf(void) {
  struct haul_check checks[4];
  assert_int_equal(provider_of(HAUL_SIM)->checks(checks, COUNT(checks)), 2);
  assert_string_equal(checks[1].name, "sim.dma-buf");
  return checks[1];
}

static void is_shared_by(const char *text) {
  struct haul_device device = {.memory = 0};
  provider_of(HAUL_SIM)->describe(0, &device);
  assert_string_equal(device.exports, text);
}

/* In a child that is not root; its exit status is the result. */
static void look_as_nobody(void *text) {
  if (geteuid() == 0 && setuid(65534) != 0)
    _exit(2);
  if (access("/tmp", X_OK) != 0) { /* the folder is root's alone */
    printf("skipped the check as another user: it cannot reach the file\n");
    fflush(stdout);
    _exit(0);
  }
  struct haul_check check = check_of_dmabuf();
  if (check.state != HAUL_CHECK_LIMITED || !strstr(check.text, text))
    _exit(3);
  if (!strstr(check.remedy, "setfacl") ||
      !strstr(check.remedy, "modprobe") != !strstr(check.text, "has no"))
    _exit(4);
}

static void missing_and_forbidden_udmabuf_differ(void **state) {
  (void)state;
  char path[] = "/tmp/haul-udmabuf-XXXXXX", missing[] = "the kernel has no /dev/udmabuf",
       forbidden[] = "no access to /dev/udmabuf";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  shm_udmabuf = path;
  assert_int_equal(check_of_dmabuf().state, HAUL_CHECK_OK);
  is_shared_by("memfd, dma-buf to NICs");
  assert_int_equal(chmod(path, 0), 0);
  assert_int_equal(child_run(look_as_nobody, forbidden), 0);
  unlink(path);
  is_shared_by("memfd");
  assert_int_equal(child_run(look_as_nobody, missing), 0);
  assert_non_null(strstr(check_of_dmabuf().text, missing));
  assert_null(strstr(check_of_dmabuf().text, "access"));
  assert_memory_equal(check_of_dmabuf().remedy, "sudo modprobe udmabuf", 21);
  shm_udmabuf = "/dev/udmabuf";
}

static void touch(void *address) {
  *(volatile char *)address;
}

static void write_to(void *address) {
  *(volatile char *)address = 1;
}

static void the_cpu_faults_on_its_addresses(void **state) {
  (void)state;
  start("1", NULL, NULL, NULL);
  struct memory memory = get(sim0, 3 * MIB);
  assert_null(memory.view);
  assert_int_equal(child_run(touch, memory.address), 128 + SIGSEGV);
  assert_int_equal(child_run(write_to, (char *)memory.address + 3 * MIB - 1), 128 + SIGSEGV);
  memory_free(&memory);
  providers_stop();
}

static void ranges_beyond_a_block_are_not_owned(void **state) {
  (void)state;
  start("1", NULL, NULL, NULL);
  struct memory memory = get(sim0, MIB), wrapped;
  char *at = memory.address;
  assert_fails(HAUL_EINVAL, memory_wrap(at + MIB - 1, 2, &wrapped));
  assert_fails(HAUL_EINVAL, memory_wrap(at - 1, 2, &wrapped));
  assert_fails(HAUL_EINVAL, memory_wrap(at - 1, MIB + 2, &wrapped));
  memory_free(&memory);
  assert_fails(HAUL_EINVAL, memory_wrap(at, 1, &wrapped));
  providers_stop();
}

/* As when another thread frees the block between `owns` and `wrap`. */
static void wrapping_freed_memory_says_so(void **state) {
  (void)state;
  start(NULL, NULL, NULL, NULL);
  struct memory memory = get(sim0, MIB), wrapped;
  char *at = memory.address;
  const struct provider *sim = provider_of(HAUL_SIM);
  assert_fails(HAUL_EINVAL, sim->wrap(at + MIB - 1, 2, &wrapped));
  assert_non_null(strstr(haul_error_last()->text, "partly"));
  memory_free(&memory);
  assert_fails(HAUL_EINVAL, sim->wrap(at, 1, &wrapped));
  assert_string_equal(haul_error_last()->text, "the range is no longer allocated");
  providers_stop();
}

static void wrapping_keeps_the_bytes_and_sees_the_free(void **state) {
  (void)state;
  start("2", NULL, NULL, NULL);
  struct memory memory = get(sim1, MIB), wrapped, bytes = get(host, MIB), back = get(host, MIB);
  pattern_fill(bytes.view, MIB, 8);
  assert_works(copy_wait(&memory, 0, &bytes, 0, MIB, HAUL_FOREVER));
  assert_works(memory_wrap((char *)memory.address + 4096, 8192, &wrapped));
  assert_int_equal(wrapped.place.device, 1);
  assert_true(wrapped.wrapped && !wrapped.shareable && memory_alive(&wrapped));
  memory_free(&memory);
  assert_false(memory_alive(&wrapped));
  assert_works(copy_wait(&back, 0, &wrapped, 0, 8192, HAUL_FOREVER));
  assert_memory_equal(back.view, (char *)bytes.view + 4096, 8192);
  memory_free(&wrapped);
  memory_free(&bytes);
  memory_free(&back);
  assert_int_equal(haul_mappings(), 0);
  providers_stop();
}

static void *alloc_and_free(void *stop) {
  while (!atomic_load((_Atomic bool *)stop)) {
    struct memory memory;
    if (memory_alloc(sim0, 4096, HAUL_REGION_PRIVATE, &memory) == 0)
      memory_free(&memory);
  }
  return NULL;
}

static void owns_runs_concurrently_with_frees(void **state) {
  (void)state;
  start("1", NULL, NULL, NULL);
  struct memory memory = get(sim0, MIB);
  _Atomic bool stop = false;
  pthread_t threads[2];
  for (size_t i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, alloc_and_free, &stop), 0);
  for (unsigned i = 0; i < 2000; i++) {
    struct memory wrapped;
    assert_works(memory_wrap((char *)memory.address + i, 100, &wrapped));
    assert_int_equal(wrapped.place.kind, HAUL_SIM);
    memory_free(&wrapped);
  }
  atomic_store(&stop, true);
  for (size_t i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  memory_free(&memory);
  providers_stop();
}

static void its_bandwidth_is_kept(void **state) {
  (void)state;
  start("1", "100000000", NULL, NULL);
  struct memory device = get(sim0, 8 * MIB), bytes = get(host, 8 * MIB);
  assert_works(copy_wait(&device, 0, &bytes, 0, 1, HAUL_FOREVER));
  int64_t from = clock_now();
  for (unsigned i = 0; i < 8; i++)
    assert_works(copy_wait(&device, i * MIB, &bytes, i * MIB, MIB, HAUL_FOREVER));
  int64_t took = clock_now() - from;
  assert_true(took >= 83 * MS); /* 8 MiB at 0.1 GB/s */
  assert_true(took < 2000 * MS);
  memory_free(&device);
  memory_free(&bytes);
  providers_stop();
}

static void its_latency_is_kept_and_overlaps(void **state) {
  (void)state;
  start("1", NULL, "300000000", NULL);
  struct memory device = get(sim0, MIB), bytes = get(host, MIB);
  const struct provider *sim = provider_of(HAUL_SIM);
  struct copy copies[4];
  int64_t from = clock_now();
  for (size_t i = 0; i < 4; i++) {
    copies[i] = (struct copy){.to = &device, .from = &bytes, .length = 4096};
    assert_works(sim->copy_start(&copies[i]));
  }
  assert_int_equal(sim->copy_poll(&copies[0]), 1);
  while (sim->copy_poll(&copies[3]) == 1)
    sched_yield();
  int64_t took = clock_now() - from;
  assert_true(took >= 300 * MS && took < 900 * MS);
  for (size_t i = 0; i < 4; i++)
    assert_int_equal(sim->copy_poll(&copies[i]), 0);
  memory_free(&device);
  memory_free(&bytes);
  providers_stop();
}

static void a_late_copy_is_canceled_in_bounded_time(void **state) {
  (void)state;
  start("1", "1000", NULL, NULL); /* an hour */
  struct memory device = get(sim0, 4 * MIB), bytes = get(host, 4 * MIB);
  int64_t from = clock_now();
  assert_fails(HAUL_ETIMEDOUT, copy_wait(&device, 0, &bytes, 0, 4 * MIB, from + 20 * MS));
  assert_fails(HAUL_ETIMEDOUT, copy_wait(&device, 0, &bytes, 0, 4 * MIB, HAUL_NO_WAIT));
  int64_t took = clock_now() - from;
  assert_true(took >= 20 * MS && took < 5000 * MS);
  memory_free(&device);
  memory_free(&bytes);
  providers_stop();
}

static void count_wake(void *user) {
  atomic_fetch_add((_Atomic unsigned *)user, 1);
}

static void running_and_queued_copies_are_canceled(void **state) {
  (void)state;
  start("1", "1000", NULL, NULL);
  struct memory device = get(sim0, MIB), bytes = get(host, MIB);
  const struct provider *sim = provider_of(HAUL_SIM);
  _Atomic unsigned wakes[3] = {0, 0, 0};
  struct copy copies[3];
  for (size_t i = 0; i < 3; i++) {
    copies[i] = (struct copy){.to = &device,
                              .from = &bytes,
                              .length = MIB,
                              .wake = count_wake,
                              .user = &wakes[i],
                              .wakes = true};
    assert_works(sim->copy_start(&copies[i]));
  }
  const size_t order[] = {1, 0, 2};
  for (size_t i = 0; i < 3; i++) {
    sim->copy_cancel(&copies[order[i]]);
    assert_int_equal(sim->copy_poll(&copies[order[i]]), HAUL_ECANCELED);
  }
  assert_true(wakes[0] <= 1 && wakes[1] == 0 && wakes[2] <= 1);
  sim->copy_cancel(&copies[0]); /* again: no effect */
  memory_free(&device);
  memory_free(&bytes);
  providers_stop();
}

static void wake_slowly(void *user) {
  atomic_store((_Atomic bool *)user, true);
  struct timespec while_reused = {.tv_nsec = 20 * MS};
  nanosleep(&while_reused, NULL);
}

static void a_copy_reused_while_its_last_wake_runs_can_be_canceled(void **state) {
  (void)state;
  start("1", "1000000", NULL, NULL);
  struct memory device = get(sim0, 64 * MIB), bytes = get(host, 64 * MIB);
  const struct provider *sim = provider_of(HAUL_SIM);
  _Atomic bool waking = false;
  struct copy copy = {.to = &device,
                      .from = &bytes,
                      .length = 1,
                      .wake = wake_slowly,
                      .user = (void *)&waking,
                      .wakes = true};
  assert_works(sim->copy_start(&copy));
  while (!atomic_load(&waking))
    sched_yield();
  copy.length = 64 * MIB; /* a minute */
  int64_t from = clock_now();
  assert_works(sim->copy_start(&copy));
  sim->copy_cancel(&copy);
  assert_int_equal(sim->copy_poll(&copy), HAUL_ECANCELED);
  assert_true(clock_now() - from < 5000 * MS);
  memory_free(&device);
  memory_free(&bytes);
  providers_stop();
}

static void stopping_ends_copies_in_flight(void **state) {
  (void)state;
  start("1", "1000", NULL, NULL);
  struct memory device = get(sim0, MIB), bytes = get(host, MIB);
  const struct provider *sim = provider_of(HAUL_SIM);
  _Atomic unsigned wakes = 0;
  struct copy copies[2];
  for (size_t i = 0; i < 2; i++) {
    copies[i] = (struct copy){.to = &device,
                              .from = &bytes,
                              .length = MIB,
                              .wake = count_wake,
                              .user = &wakes,
                              .wakes = true};
    assert_works(sim->copy_start(&copies[i]));
  }
  providers_stop();
  for (size_t i = 0; i < 2; i++)
    assert_int_equal(atomic_load(&copies[i].status), HAUL_ECLOSED);
  assert_int_equal(wakes, 2);
  memory_free(&device);
  memory_free(&bytes);
}

static void status_is_final_when_it_wakes(void *user) {
  struct copy *copy = user;
  copy->engine[5] = (uint64_t)atomic_load(&copy->status);
}

static void wakes_after_the_end(void **state) {
  (void)state;
  start("1", NULL, NULL, NULL);
  struct memory device = get(sim0, MIB), bytes = get(host, MIB);
  const struct provider *sim = provider_of(HAUL_SIM);
  assert_true(sim->wakes);
  for (unsigned i = 0; i < 200; i++) {
    struct copy copy = {.to = &device,
                        .from = &bytes,
                        .length = i,
                        .wake = status_is_final_when_it_wakes,
                        .wakes = true,
                        .user = &copy};
    copy.engine[5] = 1;
    assert_works(sim->copy_start(&copy));
    while (sim->copy_poll(&copy) == 1)
      sched_yield();
    sim->copy_cancel(&copy); /* until the wake has returned */
    assert_int_equal(copy.engine[5], 0);
  }
  memory_free(&device);
  memory_free(&bytes);
  providers_stop();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_settings_leave_no_devices_with_a_reason),
      cmocka_unit_test(settings_set_the_number_of_devices),
      cmocka_unit_test(devices_are_reported_as_emulated),
      cmocka_unit_test(missing_and_forbidden_udmabuf_differ),
      cmocka_unit_test(the_cpu_faults_on_its_addresses),
      cmocka_unit_test(ranges_beyond_a_block_are_not_owned),
      cmocka_unit_test(wrapping_freed_memory_says_so),
      cmocka_unit_test(wrapping_keeps_the_bytes_and_sees_the_free),
      cmocka_unit_test(owns_runs_concurrently_with_frees),
      cmocka_unit_test(its_bandwidth_is_kept),
      cmocka_unit_test(its_latency_is_kept_and_overlaps),
      cmocka_unit_test(a_late_copy_is_canceled_in_bounded_time),
      cmocka_unit_test(running_and_queued_copies_are_canceled),
      cmocka_unit_test(a_copy_reused_while_its_last_wake_runs_can_be_canceled),
      cmocka_unit_test(stopping_ends_copies_in_flight),
      cmocka_unit_test(wakes_after_the_end),
  };
  return cmocka_run_group_tests_name("memory/sim", tests, NULL, NULL);
}
