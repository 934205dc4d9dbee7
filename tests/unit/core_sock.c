/* SPDX-License-Identifier: MIT
 * Addresses, listeners, stale socket files, records with descriptors. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/sock.h"
#include "core/sys.h"
#include "support/names.h"
#include "support/seams.h"

#define MS   ((int64_t)1000000)
#define SOON (clock_now() + 10000 * MS)

static void parses_addresses(void **state) {
  (void)state;
  static const struct {
    const char *text, *again; /* formatted: the normalised text; NULL: unchanged */
    bool local, loopback;
  } cases[] = {
      {"tcp://127.0.0.1:7420", NULL, false, true},
      {"tcp://127.8.9.10:0", NULL, false, true},
      {"tcp://10.0.0.2:65535", NULL, false, false},
      {"tcp://0.0.0.0:1", NULL, false, false},
      {"tcp://[::1]:7420", NULL, false, true},
      {"tcp://[fe80::1]:80", NULL, false, false},
      {"tcp://[::]:80", NULL, false, false},
      {"tcp://[127.0.0.1]:80", "tcp://127.0.0.1:80", false, true},
      {"tcp://127.0.0.1:007", "tcp://127.0.0.1:7", false, true},
      {"unix:///run/haul.sock", NULL, true, true},
      {"unix:///a", NULL, true, true},
      {"unix://@a", NULL, true, true},
      {"unix://@with space:80", NULL, true, true},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct address address;
    char text[160];
    assert_works(address_parse(cases[i].text, SOON, &address));
    address_format(&address, text, sizeof text);
    assert_string_equal(text, cases[i].again ? cases[i].again : cases[i].text);
    assert_int_equal(address.local, cases[i].local);
    assert_int_equal(address.loopback, cases[i].loopback);
    assert_int_equal(address.path[0] == '/', cases[i].text[0] == 'u' && text[7] == '/');
  }
}

static void rejects_bad_addresses(void **state) {
  (void)state;
  static const char *const cases[] = {
      "",
      "tcp",
      "tcp:/",
      "tcp://",
      "tcp://:80",
      "tcp://127.0.0.1",
      "tcp://127.0.0.1:",
      "tcp://127.0.0.1:65536",
      "tcp://127.0.0.1:99999999999999999999",
      "tcp://127.0.0.1:-1",
      "tcp://127.0.0.1:+1",
      "tcp://127.0.0.1: 1",
      "tcp://127.0.0.1:1 ",
      "tcp://127.0.0.1:0x10",
      "tcp://127.0.0.1:http",
      "tcp://127.0.0.1:1/name",
      "tcp://::1:80",
      "tcp://[::1]",
      "tcp://[::1]80",
      "tcp://[]:80",
      "tcp://[:80",
      "tcp://]:80",
      "tcp://[::1:80",
      "tcp://[::g]:80",
      "tcp://1.2.3.4.5:80",
      "tcp://no.such.host.invalid:80",
      "TCP://127.0.0.1:80",
      "http://127.0.0.1:80",
      "127.0.0.1:80",
      "unix://",
      "unix:///",
      "unix://@",
      "unix://relative/path",
      "unix:/run/haul.sock",
      "/run/haul.sock",
  };
  struct address address;
  for (size_t i = 0; i < COUNT(cases); i++) {
    int code = address_parse(cases[i], SOON, &address);
    if (code != HAUL_EADDRESS)
      print_error("'%s'\n", cases[i]);
    assert_fails(HAUL_EADDRESS, code);
  }
  assert_fails(HAUL_EINVAL, address_parse(NULL, SOON, &address));
}

static void bounds_the_length_of_a_path(void **state) {
  (void)state;
  const size_t most = sizeof((struct sockaddr_un *)0)->sun_path - 1;
  struct address address;
  char text[1024] = "unix://";
  memset(text + 7, 'a', most);
  for (int i = 0; i < 2; i++) {
    text[7] = i == 0 ? '/' : '@';
    text[7 + most] = '\0';
    assert_works(address_parse(text, SOON, &address));
    char again[160];
    address_format(&address, again, sizeof again);
    assert_string_equal(again, text);
    text[7 + most] = 'a';
    text[8 + most] = '\0';
    assert_fails(HAUL_EADDRESS, address_parse(text, SOON, &address));
  }
  char host[1024] = "tcp://";
  memset(host + 6, 'a', 600);
  memcpy(host + 606, ":1", 3);
  assert_fails(HAUL_EADDRESS, address_parse(host, SOON, &address));
}

static char folder[] = "/tmp/haul-sock-XXXXXX";

static void in_folder(const char *name, struct address *address) {
  char text[100];
  snprintf(text, sizeof text, "unix://%s/%s", folder, name);
  assert_works(address_parse(text, SOON, address));
}

static int connect_now(const struct address *address, const char *object, int *fd) {
  assert_works(sock_open(address, object, fd));
  int system = sock_connect_start(*fd, address);
  if (system == EINPROGRESS) {
    assert_int_equal(poll(&(struct pollfd){.fd = *fd, .events = POLLOUT}, 1, 10000), 1);
    system = sock_connect_end(*fd);
  }
  if (system)
    close(*fd);
  return system ? sock_connect_error(system, object) : 0;
}

static void meets(struct address *address, const char *object) {
  int listener, client, server;
  char byte = 0;
  assert_works(sock_listen(address, &listener));
  assert_int_equal(sock_accept(listener), -1);
  assert_int_equal(errno, EAGAIN);
  assert_works(connect_now(address, object, &client));
  server = sock_accept(listener);
  assert_true(server >= 0);
  assert_true(fcntl(client, F_GETFL) & O_NONBLOCK && fcntl(server, F_GETFL) & O_NONBLOCK);
  assert_true(fcntl(client, F_GETFD) & FD_CLOEXEC && fcntl(server, F_GETFD) & FD_CLOEXEC);
  assert_int_equal(write(client, "x", 1), 1);
  assert_int_equal(poll(&(struct pollfd){.fd = server, .events = POLLIN}, 1, 10000), 1);
  assert_int_equal(read(server, &byte, 1), 1);
  assert_int_equal(byte, 'x');
  close(client);
  close(server);
  close(listener);
}

static const char *congestion_of(int fd) {
  static char name[16];
  socklen_t size = sizeof name;
  name[0] = '\0';
  getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

/* Set before the connection, whatever the system's default: pacing is never switched off. */
static void loopback_is_not_paced(void **state) {
  struct address address;
  int listener, client;
  (void)state;
  assert_works(address_parse("tcp://127.0.0.1:0", SOON, &address));
  assert_works(sock_listen(&address, &listener));
  assert_string_equal(congestion_of(listener), "reno");
  assert_works(connect_now(&address, "there", &client));
  assert_string_equal(congestion_of(client), "reno");
  close(client);
  close(listener);
}

static void listener_and_client_meet(void **state) {
  (void)state;
  const char *const texts[] = {"tcp://127.0.0.1:0", "tcp://[::1]:0", own_socket()};
  struct address address;
  for (size_t i = 0; i < COUNT(texts); i++) {
    assert_works(address_parse(texts[i], SOON, &address));
    if (i == 1 && access("/proc/net/if_inet6", F_OK) != 0)
      continue; /* a kernel without IPv6 */
    meets(&address, texts[i]);
  }
  in_folder("meets", &address);
  meets(&address, "a path");
}

static void the_bound_port_is_reported(void **state) {
  (void)state;
  struct address address;
  int listener;
  char text[160];
  assert_works(address_parse("tcp://127.0.0.1:0", SOON, &address));
  assert_works(sock_listen(&address, &listener));
  address_format(&address, text, sizeof text);
  assert_string_not_equal(text, "tcp://127.0.0.1:0");
  struct address again = address;
  int second;
  assert_fails(HAUL_EADDRINUSE, sock_listen(&again, &second));
  close(listener);
  assert_fails(HAUL_ECONNECT, connect_now(&address, text, &second));
}

static void a_stale_socket_file_is_replaced(void **state) {
  (void)state;
  struct address address;
  int listener;
  in_folder("stale", &address);
  for (int i = 0; i < 3; i++) {
    assert_works(sock_listen(&address, &listener));
    assert_string_equal(strrchr(address.path, '/'), "/stale");
    close(listener); /* the file stays */
  }
}

static void a_socket_file_in_use_is_kept(void **state) {
  (void)state;
  struct address address;
  int listener, other, client;
  in_folder("living", &address);
  assert_works(sock_listen(&address, &listener));
  assert_fails(HAUL_EADDRINUSE, sock_listen(&address, &other));
  assert_works(connect_now(&address, "living", &client));
  close(client);
  close(listener);
}

static void other_files_are_kept(void **state) {
  (void)state;
  struct address address;
  struct stat status;
  int listener;
  in_folder("precious", &address);
  int file = open(address.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  assert_int_equal(write(file, "data", 4), 4);
  close(file);
  assert_fails(HAUL_EADDRINUSE, sock_listen(&address, &listener));
  assert_int_equal(stat(address.path, &status), 0);
  assert_int_equal(status.st_size, 4);
}

static void a_failed_bind_has_its_reason(void **state) {
  (void)state;
  static const char *const texts[] = {"tcp://192.0.2.1:0", /* TEST-NET-1, RFC 5737: unassigned */
                                      "unix:///no/such/folder/haul.sock",
                                      "unix:///dev/null/haul.sock"};
  for (size_t i = 0; i < COUNT(texts); i++) {
    struct address address;
    int listener;
    unsigned before = open_descriptors();
    assert_works(address_parse(texts[i], SOON, &address));
    assert_fails(HAUL_EADDRESS, sock_listen(&address, &listener));
    assert_int_equal(open_descriptors(), before);
  }
}

static void a_refused_connection_fails_at_once(void **state) {
  (void)state;
  struct address address;
  int fd;
  unsigned before = open_descriptors();
  in_folder("nobody", &address);
  assert_fails(HAUL_ECONNECT, connect_now(&address, "nobody", &fd));
  assert_works(address_parse(own_socket(), SOON, &address));
  assert_fails(HAUL_ECONNECT, connect_now(&address, "nobody", &fd));
  assert_int_equal(open_descriptors(), before);
}

/* Its clients try again later (tests/node/dial.c). */
static void a_full_listener_says_so(void **state) {
  (void)state;
  struct address address;
  int clients[8], count = 0, system = 0;
  assert_works(address_parse(own_socket(), SOON, &address));
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&address.storage, address.length), 0);
  assert_int_equal(listen(listener, 1), 0);
  while (count < 8 && system == 0) {
    assert_works(sock_open(&address, "full", &clients[count]));
    system = sock_connect_start(clients[count++], &address);
  }
  assert_int_equal(system, EAGAIN);
  while (count > 0)
    close(clients[--count]);
  close(listener);
}

static void pair(int ends[2]) {
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
}

static void check_same_file(int a, int b) {
  struct stat first, second;
  assert_int_equal(fstat(a, &first), 0);
  assert_int_equal(fstat(b, &second), 0);
  assert_int_equal(first.st_ino, second.st_ino);
  assert_int_equal(first.st_dev, second.st_dev);
}

static void records_carry_descriptors(void **state) {
  (void)state;
  int ends[2], sent[SOCK_DESCRIPTORS_MAX], got[SOCK_DESCRIPTORS_MAX];
  unsigned before = open_descriptors();
  pair(ends);
  for (size_t i = 0; i < SOCK_DESCRIPTORS_MAX; i++)
    sent[i] = memfd_create("haul-record", MFD_CLOEXEC);
  for (size_t count = 0; count <= SOCK_DESCRIPTORS_MAX; count++) {
    char bytes[64];
    size_t got_count = 99;
    assert_int_equal(sock_send_record(ends[0], "record", 6, sent, count), 0);
    assert_int_equal(sock_receive_record(ends[1], bytes, sizeof bytes, got, &got_count), 6);
    assert_memory_equal(bytes, "record", 6);
    assert_int_equal(got_count, count);
    for (size_t i = 0; i < count; i++) {
      check_same_file(got[i], sent[i]);
      assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
      close(got[i]);
    }
  }
  for (size_t i = 0; i < SOCK_DESCRIPTORS_MAX; i++)
    close(sent[i]);
  close(ends[0]);
  close(ends[1]);
  assert_int_equal(open_descriptors(), before);
}

/* On Linux 6.18 a peek at the first record returns the descriptor of the second. */
static void descriptors_stay_with_their_record(void **state) {
  (void)state;
  int ends[2], got[SOCK_DESCRIPTORS_MAX];
  unsigned before = open_descriptors();
  int sent = memfd_create("haul-record", MFD_CLOEXEC);
  char bytes[6];
  size_t count;
  pair(ends);
  for (unsigned i = 0; i < 4; i++)
    assert_int_equal(sock_send_record(ends[0], "record", 6, &sent, i % 2), 0);
  for (unsigned i = 0; i < 4; i++) {
    assert_int_equal(sock_receive_record(ends[1], bytes, sizeof bytes, got, &count), 6);
    assert_int_equal(count, i % 2);
    if (count > 0)
      check_same_file(got[0], sent);
    while (count > 0)
      close(got[--count]);
  }
  close(sent);
  close(ends[0]);
  close(ends[1]);
  assert_int_equal(open_descriptors(), before);
}

static void send_by_hand(int end, int descriptor, size_t count) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * 64)];
  } control;
  memset(&control, 0, sizeof control);
  struct iovec span = {(char[]){'x'}, 1};
  struct msghdr message = {.msg_iov = &span,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * count);
  for (size_t i = 0; i < count; i++)
    memcpy(CMSG_DATA(header) + i * sizeof(int), &descriptor, sizeof descriptor);
  assert_int_equal(sendmsg(end, &message, MSG_NOSIGNAL), 1);
}

static void too_many_descriptors_are_refused_and_closed(void **state) {
  (void)state;
  int ends[2], got[SOCK_DESCRIPTORS_MAX];
  char byte;
  size_t count;
  int memory = memfd_create("haul-record", MFD_CLOEXEC);
  pair(ends);
  for (size_t many = SOCK_DESCRIPTORS_MAX + 1; many <= 64; many++) {
    unsigned before = open_descriptors();
    send_by_hand(ends[0], memory, many);
    assert_int_equal(sock_receive_record(ends[1], &byte, 1, got, &count), -EPROTO);
    assert_int_equal(count, 0);
    assert_int_equal(open_descriptors(), before);
  }
  close(memory);
  close(ends[0]);
  close(ends[1]);
}

static void no_data_and_end_of_stream_differ(void **state) {
  (void)state;
  int ends[2], got[SOCK_DESCRIPTORS_MAX];
  char byte;
  size_t count;
  pair(ends);
  assert_int_equal(sock_receive_record(ends[1], &byte, 1, got, &count), -EAGAIN);
  close(ends[0]);
  assert_int_equal(sock_receive_record(ends[1], &byte, 1, got, &count), 0);
  assert_int_equal(sock_send_record(ends[1], "x", 1, NULL, 0), -EPIPE);
  close(ends[1]);
}

static void a_full_socket_is_reported(void **state) {
  (void)state;
  int ends[2], code = 0;
  char bytes[384] = {0};
  pair(ends);
  for (int i = 0; i < 10000 && code == 0; i++)
    code = sock_send_record(ends[0], bytes, sizeof bytes, NULL, 0);
  assert_int_equal(code, -EAGAIN); /* complete records before */
  close(ends[0]);
  size_t total = 0, count;
  int got[SOCK_DESCRIPTORS_MAX];
  for (ssize_t put; (put = sock_receive_record(ends[1], bytes, sizeof bytes, got, &count)) > 0;)
    total += (size_t)put;
  assert_int_equal(total % sizeof bytes, 0);
  close(ends[1]);
}

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  static const char *const names[] = {"meets", "stale", "living", "precious"};
  char path[64];
  for (size_t i = 0; i < COUNT(names); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parses_addresses),
      cmocka_unit_test(rejects_bad_addresses),
      cmocka_unit_test(bounds_the_length_of_a_path),
      cmocka_unit_test(listener_and_client_meet),
      cmocka_unit_test(loopback_is_not_paced),
      cmocka_unit_test(the_bound_port_is_reported),
      cmocka_unit_test(a_stale_socket_file_is_replaced),
      cmocka_unit_test(a_socket_file_in_use_is_kept),
      cmocka_unit_test(other_files_are_kept),
      cmocka_unit_test(a_failed_bind_has_its_reason),
      cmocka_unit_test(a_refused_connection_fails_at_once),
      cmocka_unit_test(a_full_listener_says_so),
      cmocka_unit_test(records_carry_descriptors),
      cmocka_unit_test(descriptors_stay_with_their_record),
      cmocka_unit_test(too_many_descriptors_are_refused_and_closed),
      cmocka_unit_test(no_data_and_end_of_stream_differ),
      cmocka_unit_test(a_full_socket_is_reported),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
