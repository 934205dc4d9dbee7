/* SPDX-License-Identifier: MIT
 * libhl-thunk at run time: missing library, missing devices, HAUL_GAUDI_FD. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/gaudi/gaudi.h"
#include "support/seams.h"
#include "support/tree.h"

static const struct haul_place gaudi0 = {HAUL_GAUDI, 0}, gaudi1 = {HAUL_GAUDI, 1};
static char library[400];

/* The mock's variant; NULL: none. */
static int use(const char *variant) {
  const char *doubles = getenv("HAUL_DOUBLES");
  library_forget(&gaudi_library);
  snprintf(library, sizeof library, "%s/hlthunk/%s/libhl-thunk.so", doubles ? doubles : "",
           variant ? variant : "none");
  gaudi_library.names[0] = library;
  gaudi_library.names[1] = NULL;
  return 0;
}

static int set_up(void **state) {
  (void)state;
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL");
  unsetenv("HAUL_DOUBLE_GAUDI_DEVICES");
  unsetenv("HAUL_DOUBLE_GAUDI_ID");
  unsetenv("HAUL_DOUBLE_GAUDI_EARLIER");
  unsetenv("HAUL_GAUDI_FD");
  return use("symbols");
}

/* Allocation fails with this code and text. */
static void is_refused(struct haul_place place, int code, const char *text, const char *hint) {
  struct memory memory;
  assert_fails(code, memory_alloc(place, 4096, 0, &memory));
  assert_non_null(strstr(haul_error_last()->text, text));
  assert_non_null(strstr(haul_error_last()->hint, hint));
}

static unsigned devices(void) {
  return provider_devices(provider_of(HAUL_GAUDI));
}

static const struct haul_check *check_of(const char *name) {
  static struct haul_check checks[8];
  size_t count = provider_of(HAUL_GAUDI)->checks(checks, COUNT(checks));
  for (size_t i = 0; i < count; i++)
    if (strcmp(checks[i].name, name) == 0)
      return &checks[i];
  fail_msg("no check %s", name);
  return NULL;
}

/* The made-up sysfs: empty until a test adds files. */
static void make_sys(char root[32]) {
  snprintf(root, 32, "/tmp/haul-gaudi-XXXXXX");
  assert_non_null(mkdtemp(root));
  gaudi_sys = root;
}

static void remove_sys(const char *root) {
  gaudi_sys = "/sys";
  tree_remove(root);
}

static void all_are(int state, const char *text) {
  struct haul_check checks[8];
  size_t count = provider_of(HAUL_GAUDI)->checks(checks, COUNT(checks));
  assert_int_equal(count, 6);
  for (size_t i = 0; i < count; i++)
    if (checks[i].state != state || !strstr(checks[i].text, text))
      fail_msg("%s: %d, '%s'", checks[i].name, checks[i].state, checks[i].text);
}

static void a_host_without_a_gaudi_needs_nothing(void **state) {
  (void)state;
  const char needless[] = "not needed: this host has no Gaudi";
  char root[32];
  use(NULL);
  make_sys(root);
  assert_works(providers_start());
  all_are(HAUL_CHECK_OK, needless);
  assert_string_equal(check_of("gaudi.library")->remedy, "");
  tree_file(root, "bus/pci/devices/0000:32:00.0/vendor", "0x8086\n");
  tree_file(root, "bus/pci/devices/0000:32:00.0/class", "0x120000\n");
  all_are(HAUL_CHECK_OK, needless);
  setenv("HAUL_GAUDI_FD", "3", 1); /* the user says that there is one */
  all_are(HAUL_CHECK_MISSING, "");
  unsetenv("HAUL_GAUDI_FD");
  tree_folder(root, "module/habanalabs");
  all_are(HAUL_CHECK_MISSING, "");
  providers_stop();
  remove_sys(root);
  use("older"); /* an installed library implies a device */
  make_sys(root);
  assert_works(providers_start());
  all_are(HAUL_CHECK_MISSING, "");
  providers_stop();
  remove_sys(root);
}

static void without_a_library_there_are_no_devices_and_a_package(void **state) {
  (void)state;
  char root[32];
  use(NULL);
  make_sys(root);
  tree_file(root, "bus/pci/devices/0000:33:00.0/vendor", "0x1da3\n");
  tree_file(root, "bus/pci/devices/0000:33:00.0/class", "0x120000\n");
  assert_works(providers_start());
  assert_int_equal(devices(), 0);
  is_refused(gaudi0, HAUL_EPLACE, "libhl-thunk cannot be opened", "apt-get install");
  assert_int_equal(check_of("gaudi.library")->state, HAUL_CHECK_MISSING);
  assert_non_null(strstr(check_of("gaudi.library")->remedy, "apt-get install"));
  assert_int_equal(check_of("gaudi.device")->state, HAUL_CHECK_MISSING);
  struct memory memory; /* other kinds work */
  assert_works(memory_alloc((struct haul_place){HAUL_HOST, 0}, 1, 0, &memory));
  memory_free(&memory);
  providers_stop();
  remove_sys(root);
}

static void a_library_that_lacks_calls_is_rejected_and_closed(void **state) {
  (void)state;
  unsigned before = open_descriptors();
  use("older");
  assert_null(gaudi_driver_open());
  assert_int_equal(haul_error_last()->code, HAUL_ENOTSUP);
  const char *missing[] = {"hlthunk_device_mapped_memory_export_dmabuf_fd",
                           "hlthunk_command_submission", "hlthunk_wait_for_cs"};
  for (size_t i = 0; i < COUNT(missing); i++)
    assert_non_null(strstr(haul_error_last()->hint, missing[i]));
  assert_null(strstr(haul_error_last()->hint, "hlthunk_memory_unmap"));
  assert_string_equal(haul_error_last()->object, library);
  assert_int_equal(open_descriptors(), before);
}

static void starting_opens_nothing(void **state) {
  (void)state;
  gaudi_library.names[0] = "/nonexistent/so-that-opening-fails";
  assert_works(providers_start());
  use("symbols");
  assert_int_equal(devices(), 2); /* it was not probed before */
  providers_stop();
}

static void no_device_hints_at_the_module(void **state) {
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_DEVICES", "0", 1);
  assert_works(providers_start());
  is_refused(gaudi0, HAUL_EPLACE, "shows no Gaudi device", "modprobe habanalabs");
  assert_non_null(strstr(check_of("gaudi.device")->remedy, "modprobe habanalabs"));
  assert_int_equal(check_of("gaudi.free")->state, HAUL_CHECK_MISSING);
  providers_stop();
}

static void no_permission_hints_at_the_command(void **state) {
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_FAIL", "control:0:13", 1);
  assert_works(providers_start());
  is_refused(gaudi0, HAUL_EPLACE, "no permission", "setfacl");
  assert_int_equal(check_of("gaudi.device")->state, HAUL_CHECK_MISSING);
  providers_stop();
}

static void other_models_are_rejected(void **state) {
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_ID", "0x1000", 1);
  assert_works(providers_start());
  assert_int_equal(devices(), 0);
  is_refused(gaudi0, HAUL_EPLACE, "0x1000", "Gaudi2");
  providers_stop();
}

/* Else it would read as another model, or its page size as 0. */
static void another_layout_of_the_description_is_named(void **state) {
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_EARLIER", "1", 1);
  assert_works(providers_start());
  assert_int_equal(devices(), 0);
  is_refused(gaudi0, HAUL_EPLACE, "struct hlthunk_hw_ip_info", "habanalabs-thunk");
  assert_int_equal(check_of("gaudi.device")->state, HAUL_CHECK_MISSING);
  assert_non_null(strstr(check_of("gaudi.device")->text, "struct hlthunk_hw_ip_info"));
  providers_stop();
}

static void devices_past_the_last_are_rejected(void **state) {
  (void)state;
  assert_works(providers_start());
  is_refused((struct haul_place){HAUL_GAUDI, 2}, HAUL_EPLACE, "gaudi has 2 devices",
             "haul_device_list");
  providers_stop();
}

static void opening_fails_with_the_drivers_reason(void **state) {
  (void)state;
  const struct {
    int system, code;
    const char *text, *hint;
  } all[] = {{EBUSY, HAUL_EBUSY, "another process", "HAUL_GAUDI_FD"},
             {EAGAIN, HAUL_EBUSY, "released by its last user", "again"},
             {EACCES, HAUL_EACCESS, "no permission", "setfacl"},
             {ENODEV, HAUL_ESYSTEM, "", ""}};
  assert_works(providers_start());
  for (size_t i = 0; i < COUNT(all); i++) {
    char fail[32];
    snprintf(fail, sizeof fail, "open:0:%d", all[i].system);
    setenv("HAUL_DOUBLE_GAUDI_FAIL", fail, 1);
    is_refused(gaudi0, all[i].code, all[i].text, all[i].hint);
    assert_int_equal(haul_error_last()->system, all[i].system);
  }
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL"); /* the library was closed */
  struct memory memory;
  assert_works(memory_alloc(gaudi0, 4096, 0, &memory));
  memory_free(&memory);
  providers_stop();
}

static void a_device_is_closed_by_the_last_stop(void **state) {
  (void)state;
  struct memory memory;
  unsigned before = open_descriptors();
  assert_works(providers_start());
  assert_int_equal(devices(), 2);
  assert_int_equal(open_descriptors(), before); /* not before the first use */
  assert_works(memory_alloc(gaudi1, 4096, 0, &memory));
  assert_int_equal(open_descriptors(), before + 1);
  memory_free(&memory);
  assert_int_equal(open_descriptors(), before + 1);
  providers_stop();
  assert_int_equal(open_descriptors(), before);
}

static void it_describes_its_device(void **state) {
  (void)state;
  struct haul_device device = {.numa = -2};
  assert_works(providers_start());
  provider_of(HAUL_GAUDI)->describe(1, &device);
  assert_string_equal(device.pci, "0000:34:00.0");
  assert_true(device.memory == (uint64_t)960 << 20);
  assert_int_equal(device.numa, -1);
  assert_non_null(strstr(device.name, "double"));
  assert_string_equal(check_of("gaudi.device")->text, "2 Gaudi2 devices");
  providers_stop();
}

static void a_frameworks_descriptor_is_used_and_stays_open(void **state) {
  (void)state;
  const struct gaudi_driver *driver = gaudi_driver_open();
  char text[32];
  struct memory memory;
  assert_non_null(driver);
  int fd = driver->open(GAUDI_KIND_ANY, "0000:34:00.0");
  assert_true(fd >= 0);
  snprintf(text, sizeof text, "%d:0", fd); /* another device */
  setenv("HAUL_GAUDI_FD", text, 1);
  assert_works(providers_start());
  is_refused(gaudi0, HAUL_EPLACE, "says device 0", "leave the device out");
  providers_stop();
  snprintf(text, sizeof text, "%d", fd);
  setenv("HAUL_GAUDI_FD", text, 1);
  assert_works(providers_start());
  unsigned before = open_descriptors();
  assert_works(memory_alloc(gaudi1, 4096, 0, &memory)); /* a second open would fail with EBUSY */
  assert_int_equal(open_descriptors(), before);
  memory_free(&memory);
  providers_stop();
  assert_true(fcntl(fd, F_GETFD) >= 0);
  driver->close(fd);
}

static void a_frameworks_memory_can_be_wrapped(void **state) {
  (void)state;
  const struct gaudi_driver *driver = gaudi_driver_open();
  char text[32];
  struct memory memory;
  uint64_t offset;
  int dmabuf;
  assert_non_null(driver);
  int fd = driver->open(GAUDI_KIND_ANY, "0000:33:00.0");
  uint64_t handle = driver->device_memory_alloc(fd, 4096, 0, false, false);
  uint64_t base = driver->device_memory_map(fd, handle, 0);
  assert_true(base != 0);
  snprintf(text, sizeof text, "%d:0", fd);
  setenv("HAUL_GAUDI_FD", text, 1);
  assert_works(providers_start());
  assert_works(memory_wrap((void *)base, 8192, &memory));
  assert_memory_equal(&memory.place, &gaudi0, sizeof gaudi0);
  assert_true(memory.wrapped && !memory.view);
  assert_works(memory_dmabuf(&memory, &dmabuf, &offset));
  assert_int_equal(offset, 0);
  close(dmabuf);
  memory_free(&memory);
  assert_works(memory_wrap((void *)(base + 4096), 4096, &memory)); /* at another address */
  assert_fails(HAUL_ENOTSUP, memory_dmabuf(&memory, &dmabuf, &offset));
  assert_non_null(strstr(haul_error_last()->hint, "where the framework mapped it"));
  memory_free(&memory);
  providers_stop();
  driver->close(fd);
}

static void without_a_frameworks_descriptor_its_memory_is_unknown(void **state) {
  (void)state;
  struct memory memory;
  assert_works(providers_start());
  assert_fails(HAUL_EINVAL, memory_wrap((void *)((uintptr_t)0x1001 << 48), 4096, &memory));
  assert_non_null(strstr(haul_error_last()->hint, "HAUL_GAUDI_FD"));
  providers_stop();
}

static void an_invalid_descriptor_leaves_no_devices(void **state) {
  (void)state;
  const char *words[] = {"", "x", "-1", "3:", "3:x", "3 ", ":0", "99999999"};
  for (size_t i = 0; i < COUNT(words); i++) {
    setenv("HAUL_GAUDI_FD", words[i], 1);
    assert_works(providers_start());
    is_refused(gaudi0, HAUL_EPLACE, "HAUL_GAUDI_FD", "unset it");
    assert_int_equal(check_of("gaudi.device")->state, HAUL_CHECK_MISSING);
    assert_string_equal(check_of("gaudi.device")->remedy, "unset HAUL_GAUDI_FD");
    providers_stop();
  }
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  char text[32];
  snprintf(text, sizeof text, "%d", null);
  const char *others[] = {text, "9999"};
  for (size_t i = 0; i < COUNT(others); i++) {
    setenv("HAUL_GAUDI_FD", others[i], 1);
    assert_works(providers_start());
    is_refused(gaudi0, HAUL_EPLACE, "names no open Gaudi2", "unset it");
    providers_stop();
  }
  close(null);
}

int main(void) {
#define FRESH(test) cmocka_unit_test_setup(test, set_up)
  const struct CMUnitTest tests[] = {
      FRESH(a_host_without_a_gaudi_needs_nothing),
      FRESH(without_a_library_there_are_no_devices_and_a_package),
      FRESH(a_library_that_lacks_calls_is_rejected_and_closed),
      FRESH(starting_opens_nothing),
      FRESH(no_device_hints_at_the_module),
      FRESH(no_permission_hints_at_the_command),
      FRESH(other_models_are_rejected),
      FRESH(another_layout_of_the_description_is_named),
      FRESH(devices_past_the_last_are_rejected),
      FRESH(opening_fails_with_the_drivers_reason),
      FRESH(a_device_is_closed_by_the_last_stop),
      FRESH(it_describes_its_device),
      FRESH(a_frameworks_descriptor_is_used_and_stays_open),
      FRESH(a_frameworks_memory_can_be_wrapped),
      FRESH(without_a_frameworks_descriptor_its_memory_is_unknown),
      FRESH(an_invalid_descriptor_leaves_no_devices),
  };
  return cmocka_run_group_tests_name("gaudi/driver", tests, NULL, NULL);
}
