/* SPDX-License-Identifier: MIT
 * An etcd that authenticates clients by passwords and by certificates. */
#include "support/check.h"

#include <fcntl.h>
#include <haul/directory.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "support/etcd.h"
#include "support/owner.h"
#include "support/tree.h"

#define BOUND (20 * S)
#define LEASE 2

static char folder[64] = "/tmp/haul-login-XXXXXX";
static struct etcd etcd = {.certificates = folder};
static struct haul_node *server, *client;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static const char *in_folder(const char *name) {
  static char paths[4][128];
  static unsigned next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static const char *login(const char *text, mode_t mode) {
  const char *path = in_folder("login");
  unlink(path);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  fchmod(fd, mode);
  close(fd);
  return path;
}

static int make_certificates(void) {
  char command[1400];
  snprintf(command, sizeof command,
           "cd %s && umask 077 && new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes' && "
           "openssl req -x509 $new -days 2 -subj /CN=ca -keyout ca.key -out ca.pem >log 2>&1 && "
           "echo subjectAltName=IP:127.0.0.1 >names && for n in server node; do s=/O=nodes; [ $n = "
           "node ] || s=/CN=$n; "
           "openssl req $new -subj $s -keyout $n.key -out $n.csr >>log 2>&1 && openssl x509 -req "
           "-in $n.csr -CA "
           "ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out $n.pem >>log 2>&1 || "
           "exit 1; done",
           folder);
  return system(command);
}

static int open_node(const char *name, const char *file, struct haul_node **node) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.name = name;
  config.directory_login = file;
  return haul_node_open(&config, node);
}

static int enter(const char *directory) {
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  options.lease_seconds = LEASE;
  return haul_node_register(server, directory, &options, soon());
}

static int find(const char *directory) {
  struct haul_directory_entry entry;
  size_t count = 1;
  char address[160];
  snprintf(address, sizeof address, "%s/server", directory);
  return haul_directory_find(client, address, soon(), &entry, &count);
}

static void open_both(const char *text) {
  assert_works(open_node("server", login(text, 0600), &server));
  assert_works(open_node("client", login(text, 0600), &client));
  assert_works(haul_node_listen(server, "tcp://127.0.0.1:0"));
}

static int close_both(void **state) {
  (void)state;
  haul_node_close(server);
  haul_node_close(client);
  server = client = NULL;
  return 0;
}

#define NODE  "user = node\npassword = what nodes know\n"
#define GUEST "# may do nothing\nuser=guest\npassword=guest\n"

/* Users root, node and guest; "node" may do all below "test/". */
static void ask_for_passwords(void) {
  static const char *const steps[][2] = {
      {"user/add", "{\"name\":\"root\",\"password\":\"root\"}"},
      {"user/add", "{\"name\":\"node\",\"password\":\"what nodes know\"}"},
      {"user/add", "{\"name\":\"guest\",\"password\":\"guest\"}"},
      {"role/add", "{\"name\":\"root\"}"},
      {"role/add", "{\"name\":\"nodes\"}"},
      {"role/grant",
       "{\"name\":\"nodes\",\"perm\":{\"permType\":\"READWRITE\",\"key\":\"dGVzdC8=\","
       "\"range_end\":\"dGVzdDA=\"}}"},
      {"user/grant", "{\"user\":\"root\",\"role\":\"root\"}"},
      {"user/grant", "{\"user\":\"node\",\"role\":\"nodes\"}"},
      {"enable", "{}"},
  };
  for (size_t i = 0; i < COUNT(steps); i++) {
    char path[64];
    snprintf(path, sizeof path, "/v3/auth/%s", steps[i][0]);
    assert_true(etcd_ask(&etcd, path, steps[i][1]));
  }
}

static void a_missing_login_is_reported(void **state) {
  (void)state;
  assert_works(open_node("client", NULL, &client));
  assert_fails(HAUL_EAUTH, find(etcd.directory));
  assert_non_null(strstr(haul_error_last()->hint, "directory_login"));
}

static void a_user_finds_and_is_found(void **state) {
  struct haul_directory_event event;
  haul_directory *walk;
  (void)state;
  open_both(NODE);
  assert_works(enter(etcd.directory));
  assert_works(find(etcd.directory));
  assert_works(haul_directory_open(client, etcd.directory, soon(), &walk));
  assert_works(haul_directory_next(walk, soon(), &event));
  assert_string_equal(event.entry.node, "server");
  haul_directory_close(walk);
}

static void a_wrong_password_is_rejected(void **state) {
  (void)state;
  assert_works(open_node("client", login("user = node\npassword = x\n", 0600), &client));
  assert_fails(HAUL_EAUTH, find(etcd.directory));
}

static void a_user_without_the_right_is_refused(void **state) {
  (void)state;
  open_both(GUEST);
  assert_fails(HAUL_EAUTH, find(etcd.directory));
  assert_fails(HAUL_EAUTH, enter(etcd.directory));
}

static void *come_back(void *unused) {
  sleep(1);
  etcd_start_again(&etcd, false);
  return unused;
}

/* Its tokens are in its memory. */
static void an_expired_token_is_renewed(void **state) {
  struct haul_directory_event event;
  haul_directory *walk;
  pthread_t thread;
  (void)state;
  open_both(NODE);
  assert_works(enter(etcd.directory));
  assert_works(haul_directory_open(client, etcd.directory, soon(), &walk));
  do
    assert_works(haul_directory_next(walk, soon(), &event));
  while (event.kind != HAUL_DIRECTORY_TOLD);
  etcd_kill(&etcd);
  assert_int_equal(pthread_create(&thread, NULL, come_back, NULL), 0);
  const haul_deadline until = haul_deadline_in(3 * S);
  int code;
  do /* entries may be repeated */
    code = haul_directory_next(walk, until, &event);
  while (code == 0);
  assert_int_equal(code, HAUL_ETIMEDOUT);
  pthread_join(thread, NULL);
  assert_works(find(etcd.directory));
  haul_node_close(server); /* removing its entries needs a token, too */
  server = NULL;
  do
    assert_works(haul_directory_next(walk, soon(), &event));
  while (event.kind != HAUL_DIRECTORY_WENT);
  haul_directory_close(walk);
}

static const char *secure(void) {
  static char directory[96];
  snprintf(directory, sizeof directory, "etcds://127.0.0.1:%u/test", etcd.secure_port);
  return directory;
}

static void certificates_authenticate_both_sides(void **state) {
  char text[512];
  (void)state;
  snprintf(text, sizeof text, NODE "authority = %s\ncertificate = %s\nprivate_key = %s\n",
           in_folder("ca.pem"), in_folder("node.pem"), in_folder("node.key"));
  open_both(text);
  assert_works(enter(secure()));
  assert_works(find(secure()));
}

/* Over HTTP etcd rejects a certificate with a common name, and reports that reason. */
static void a_certificate_with_a_name_is_refused_with_the_reason(void **state) {
  char text[512];
  (void)state;
  snprintf(text, sizeof text, NODE "authority = %s\ncertificate = %s\nprivate_key = %s\n",
           in_folder("ca.pem"), in_folder("server.pem"), in_folder("server.key"));
  assert_works(open_node("client", login(text, 0600), &client));
  assert_fails(HAUL_EAUTH, find(secure()));
  assert_non_null(strstr(haul_error_last()->text, "CommonName"));
}

static void an_untrusted_etcd_gets_no_password(void **state) {
  (void)state;
  assert_works(open_node("client", login(NODE, 0600), &client));
  assert_fails(HAUL_EAUTH, find(secure()));
}

static void a_password_is_never_sent_unencrypted(void **state) {
  (void)state;
  assert_works(open_node("client", login(NODE, 0600), &client));
  assert_fails(HAUL_EINSECURE, find("etcd://10.255.255.1/test"));
  assert_non_null(strstr(haul_error_last()->hint, "etcds://"));
}

static void a_login_readable_by_others_is_rejected(void **state) {
  (void)state;
  assert_fails(HAUL_EINSECURE, open_node("client", login(NODE, 0640), &client));
  assert_fails(HAUL_EINVAL, open_node("client", in_folder("none"), &client));
}

static void errors_name_the_line(void **state) {
  static const char *const texts[][2] = {
      {"user = a\n", "set together"},
      {"certificate = a\n", "set together"},
      {"user a\n", "line 1: no '='"},
      {"\n# x\nname = a\n", "line 3: unknown name"},
      {"user = a\npassword = b\nuser = c\n", "line 3: duplicate name"},
      {"user =\n", "line 1: expected a value of"},
  };
  (void)state;
  for (size_t i = 0; i < COUNT(texts); i++) {
    assert_works(open_node("client", login(texts[i][0], 0600), &client));
    assert_fails(HAUL_EINVAL, find(etcd.directory));
    assert_non_null(strstr(haul_error_last()->text, texts[i][1]));
    haul_node_close(client);
    client = NULL;
  }
}

static int set_up(void **state) {
  (void)state;
  assert_non_null(mkdtemp(folder));
  assert_int_equal(make_certificates(), 0);
  etcd_start(&etcd);
  ask_for_passwords();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  etcd_remove(&etcd);
  tree_remove(folder);
  return 0;
}

int main(void) {
#define TEST(test) cmocka_unit_test_teardown(test, close_both)
  const struct CMUnitTest tests[] = {
      TEST(a_missing_login_is_reported),
      TEST(a_user_finds_and_is_found),
      TEST(a_wrong_password_is_rejected),
      TEST(a_user_without_the_right_is_refused),
      TEST(an_expired_token_is_renewed),
      TEST(certificates_authenticate_both_sides),
      TEST(a_certificate_with_a_name_is_refused_with_the_reason),
      TEST(an_untrusted_etcd_gets_no_password),
      TEST(a_password_is_never_sent_unencrypted),
      TEST(a_login_readable_by_others_is_rejected),
      TEST(errors_name_the_line),
  };
  if (!etcd_is_installed() || system("command -v openssl >/dev/null") != 0) {
    print_message("skipped all: no etcd or no openssl (apt-get install etcd-server openssl)\n");
    return 77;
  }
  return cmocka_run_group_tests_name("login", tests, set_up, tear_down);
}
