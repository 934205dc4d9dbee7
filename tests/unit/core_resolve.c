/* SPDX-License-Identifier: MIT
 * Host names are resolved, or time out at the deadline. */
#include "support/check.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "core/sock.h"
#include "core/sys.h"
#include "support/owner.h"
#include "support/seams.h"

#define SLOW_S 2

static atomic_bool is_slow;
static atomic_uint asked;

/* A slow resolver that knows "here". */
static int slow_getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted,
                            struct addrinfo **found) {
  if (wanted->ai_flags & AI_NUMERICHOST)
    return getaddrinfo(host, port, wanted, found);
  atomic_fetch_add(&asked, 1);
  if (atomic_load(&is_slow))
    nanosleep(&(struct timespec){SLOW_S, 0}, NULL);
  return strcmp(host, "here") == 0 ? getaddrinfo("127.0.0.1", port, wanted, found) : EAI_AGAIN;
}

/* Before any thread starts, for the whole process. */
static __attribute__((constructor)) void install(void) {
  sys_ops.getaddrinfo = slow_getaddrinfo;
}

static void ip_addresses_are_parsed_without_a_resolver(void **state) {
  (void)state;
  struct address address;
  atomic_store(&asked, 0);
  assert_works(address_parse("tcp://127.0.0.1:1", HAUL_NO_WAIT, &address));
  assert_works(address_parse("tcp://[::1]:00000000001", HAUL_NO_WAIT, &address));
  assert_int_equal(atomic_load(&asked), 0);
}

static void a_name_is_found(void **state) {
  (void)state;
  struct address address;
  char text[160];
  assert_works(address_parse("tcp://here:000000080", haul_deadline_in(20 * S), &address));
  address_format(&address, text, sizeof text);
  assert_string_equal(text, "tcp://127.0.0.1:80");
  assert_true(address.loopback);
}

static void an_unknown_name_is_an_error(void **state) {
  (void)state;
  struct address address;
  assert_fails(HAUL_EADDRESS, address_parse("tcp://there:80", HAUL_FOREVER, &address));
  assert_non_null(strstr(haul_error_last()->text, gai_strerror(EAI_AGAIN)));
  assert_string_equal(haul_error_last()->object, "tcp://there:80");
}

static void a_slow_resolver_costs_no_more_than_the_deadline(void **state) {
  (void)state;
  struct haul_node *node;
  struct haul_peer *peer;
  assert_works(haul_node_open(NULL, &node));
  atomic_store(&is_slow, true);
  int64_t began = haul_deadline_in(0);
  assert_fails(HAUL_ETIMEDOUT,
               haul_peer_connect(node, "tcp://here:80", haul_deadline_in(100 * MS), &peer));
  assert_in_range(haul_deadline_in(0) - began, 100 * MS, SLOW_S * S * 3 / 4);
  atomic_store(&is_slow, false);
  haul_node_close(node);
}

/* Abandoned lookups count, too. */
static void pending_lookups_are_bounded(void **state) {
  (void)state;
  struct address address;
  int code = HAUL_ETIMEDOUT;
  unsigned tries = 0;
  atomic_store(&is_slow, true);
  for (; code == HAUL_ETIMEDOUT && tries < 1000; tries++)
    code = address_parse("tcp://here:80", HAUL_NO_WAIT, &address);
  atomic_store(&is_slow, false);
  assert_fails(HAUL_ELIMIT, code);
  haul_deadline until = haul_deadline_in(20 * S);
  while (code == HAUL_ELIMIT && haul_deadline_in(0) < until) /* they end later */
    code = address_parse("tcp://here:80", until, &address);
  assert_works(code);
}

static void lack_of_memory_is_an_error(void **state) {
  (void)state;
  struct address address;
  seams_refuse(1);
  int code = address_parse("tcp://here:80", HAUL_FOREVER, &address);
  assert_true(seams_restore());
  assert_fails(HAUL_ENOMEM, code);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ip_addresses_are_parsed_without_a_resolver),
      cmocka_unit_test(a_name_is_found),
      cmocka_unit_test(an_unknown_name_is_an_error),
      cmocka_unit_test(a_slow_resolver_costs_no_more_than_the_deadline),
      cmocka_unit_test(pending_lookups_are_bounded),
      cmocka_unit_test(lack_of_memory_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
