/* SPDX-License-Identifier: MIT
 * Authentication of nodes: accepted and rejected peers, encryption on the wire, and the cost of
 * unauthenticated peers. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/access.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/sys.h"
#include "core/tls/session.h"
#include "support/owner.h"
#include "support/raw.h"
#include "support/tree.h"

#define BOUND  (20 * S)
#define LENGTH ((size_t)3 << 20)

static char folder[64];
static struct haul_node *server, *client;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

/* A path in the folder; eight are kept. */
static const char *in_folder(const char *name) {
  static char paths[8][160];
  static unsigned next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static void make_key(const char *file, const char *name) {
  assert_works(haul_key_new(in_folder(file), name));
}

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/haul-tls-XXXXXX");
  assert_non_null(mkdtemp(folder));
  make_key("alice", "alice");
  make_key("bob", "bob");
  make_key("other", "alice");
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  tree_remove(folder);
  return 0;
}

/* `file` is of the folder, NULL: no key. */
static struct haul_node *node_with(const char *file) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.key = file ? in_folder(file) : NULL;
  config.handshake_ns = 3 * S;
  config.peer_events = 1;
  assert_works(haul_node_open(&config, &node));
  return node;
}

static void end_tap(void);

static int close_nodes(void **state) {
  (void)state;
  haul_node_close(client);
  haul_node_close(server);
  client = server = NULL;
  end_tap();
  return 0;
}

static const char *listening(struct haul_node *node) {
  static char address[160];
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, address, sizeof address));
  return address;
}

static int connects(struct haul_node *from, const char *address) {
  haul_peer *peer = NULL;
  int code = haul_peer_connect(from, address, soon(), &peer);
  haul_peer_close(peer);
  return code;
}

static void two_with_one_key_know_each_other_by_its_name(void **state) {
  haul_peer *peer;
  struct haul_message message;
  (void)state;
  server = node_with("alice");
  client = node_with("alice");
  assert_works(haul_peer_connect(client, listening(server), soon(), &peer));
  assert_string_equal(haul_peer_identity(peer), "alice");
  assert_works(haul_message_receive(server, &message, soon()));
  assert_int_equal(message.kind, HAUL_PEER_JOINED);
  assert_string_equal(haul_peer_identity(message.peer), "alice");
  haul_message_release(&message);
  haul_peer_close(peer);
}

static void a_file_may_have_a_key_for_each_client(void **state) {
  char command[512];
  struct haul_message message;
  (void)state;
  snprintf(command, sizeof command, "umask 077; (echo '# clients'; cat %s; echo; cat %s) > %s",
           in_folder("alice"), in_folder("bob"), in_folder("both"));
  assert_int_equal(system(command), 0);
  server = node_with("both");
  client = node_with("bob");
  assert_works(connects(client, listening(server)));
  assert_works(haul_message_receive(server, &message, soon()));
  assert_string_equal(haul_peer_identity(message.peer), "bob");
  haul_message_release(&message);
}

static void other_keys_are_refused(void **state) {
  (void)state;
  server = node_with("alice");
  const char *address = listening(server);
  client = node_with("bob");
  assert_fails(HAUL_EAUTH, connects(client, address));
  assert_non_null(strstr(haul_error_last()->hint, "bob"));
  haul_node_close(client);
  client = node_with("other"); /* of the same name */
  assert_fails(HAUL_EAUTH, connects(client, address));
}

static void a_node_without_a_key_is_rejected_with_a_reason(void **state) {
  (void)state;
  server = node_with("alice");
  client = node_with(NULL);
  assert_fails(HAUL_EAUTH, connects(client, listening(server)));
  assert_non_null(strstr(haul_error_last()->text, "key"));
}

static ssize_t (*receive)(int socket, struct msghdr *message, int flags);
static _Atomic unsigned looks;

/* The first MSG_PEEK finds no bytes; they arrive right after it. */
static ssize_t just_after_the_look(int socket, struct msghdr *message, int flags) {
  if (!(flags & MSG_PEEK) || atomic_fetch_add(&looks, 1) > 0)
    return receive(socket, message, flags);
  poll(&(struct pollfd){.fd = socket, .events = POLLIN}, 1, 5000);
  errno = EAGAIN;
  return -1;
}

static void the_response_may_arrive_at_any_moment(void **state) {
  (void)state;
  receive = sys_ops.recvmsg;
  sys_ops.recvmsg = just_after_the_look; /* before there are threads */
  server = node_with("alice");
  client = node_with("alice");
  int code = connects(client, listening(server));
  haul_node_close(client);
  haul_node_close(server);
  client = server = NULL;
  sys_ops.recvmsg = receive;
  assert_int_equal(code, 0);
  assert_true(atomic_load(&looks) > 0);
}

static void a_node_with_a_key_rejects_one_without(void **state) {
  (void)state;
  server = node_with(NULL);
  client = node_with("alice");
  assert_fails(HAUL_EAUTH, connects(client, listening(server)));
  assert_non_null(strstr(haul_error_last()->text, "has no key"));
}

static void a_node_that_its_caller_drives_can_connect_to_itself(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.key = in_folder("alice");
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &client));
  assert_works(connects(client, listening(client)));
}

static void with_a_key_any_address_may_be_listened_on(void **state) {
  (void)state;
  server = node_with(NULL);
  assert_fails(HAUL_EINSECURE, haul_node_listen(server, "tcp://0.0.0.0:0"));
  client = node_with("alice");
  assert_works(haul_node_listen(client, "tcp://0.0.0.0:0"));
}

static int looks_up(const char *key, const char *address, haul_peer **peer, haul_remote **remote) {
  client = node_with(key);
  assert_works(haul_peer_connect(client, address, soon(), peer));
  return haul_peer_lookup(*peer, "kv", soon(), remote);
}

static int writes(haul_remote *remote) {
  const struct haul_piece piece = {0, 0, 64};
  haul_region *from;
  assert_works(haul_region_alloc(client, (struct haul_place){HAUL_HOST, 0}, 64, 0, &from));
  int code = haul_write(remote, from, &piece, 1, NULL, NULL);
  haul_region_release(from);
  return code;
}

static void a_region_is_visible_to_granted_identities_only(void **state) {
  const struct haul_grant grants[] = {{"bob", HAUL_READ | HAUL_WRITE}, {"carol", HAUL_READ}};
  struct haul_published published[2];
  size_t count = COUNT(published);
  haul_region *region;
  haul_peer *peer;
  haul_remote *remote = NULL;
  char command[512];
  (void)state;
  make_key("carol", "carol");
  snprintf(command, sizeof command, "umask 077; cat %s %s > %s; cat %s >> %s", in_folder("alice"),
           in_folder("bob"), in_folder("three"), in_folder("carol"), in_folder("three"));
  assert_int_equal(system(command), 0);
  server = node_with("three");
  const char *address = listening(server);
  assert_works(haul_region_alloc(server, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  assert_works(haul_region_publish_to(region, "kv", grants, COUNT(grants)));

  assert_fails(HAUL_ENAME, looks_up("alice", address, &peer, &remote));
  assert_works(haul_peer_list(peer, soon(), published, &count));
  assert_int_equal(count, 0);
  haul_peer_close(peer);
  haul_node_close(client);

  assert_works(looks_up("carol", address, &peer, &remote));
  assert_fails(HAUL_EACCESS, writes(remote));
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(client);

  assert_works(looks_up("bob", address, &peer, &remote));
  assert_works(writes(remote));
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(region);
}

static _Atomic bool stops;

static void *progress_slowly(void *user) {
  while (!atomic_load(&stops)) {
    haul_node_progress(server, haul_deadline_in(0));
    poll(NULL, 0, 5);
  }
  return user;
}

static void rails_are_not_parked_before_all_are_open(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_region *region;
  haul_peer *peer;
  haul_remote *remote;
  pthread_t thread;
  (void)state;
  config.key = in_folder("alice");
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &server));
  assert_works(haul_region_alloc(server, (struct haul_place){HAUL_HOST, 0}, 64, 0, &region));
  assert_works(haul_region_publish(region, "kv", HAUL_WRITE));
  config.progress = HAUL_PROGRESS_THREAD;
  config.paths = "tcp";
  config.tcp_rails = 8;
  config.idle_rails_ns = 1 * MS; /* less than the handshakes take */
  assert_works(haul_node_open(&config, &client));
  const char *address = listening(server);
  atomic_store(&stops, false);
  pthread_create(&thread, NULL, progress_slowly, NULL);
  assert_works(haul_peer_connect(client, address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "kv", soon(), &remote));
  assert_works(writes(remote));
  haul_remote_release(remote);
  haul_peer_close(peer);
  atomic_store(&stops, true);
  pthread_join(thread, NULL);
  haul_region_release(region);
}

/* Unix sockets: the kernel knows */

#define CANNOT_RUN 99 /* its root folder may be closed to others, as in some chroots */

static int connects_as(uid_t user, const char *address) {
  pid_t child = fork();
  int status;
  if (child == 0) {
    char *arguments[] = {"tls", (char *)(uintptr_t)address, NULL};
    if (setresuid(user, user, user) == 0)
      execv("/proc/self/exe", arguments);
    _exit(CANNOT_RUN);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return -WEXITSTATUS(status);
}

static void unix_sockets_are_for_their_own_user(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_message message;
  char address[96];
  (void)state;
  if (geteuid() != 0) {
    printf("skipped another user's connections: only root can be another user\n");
    return;
  }
  config.peer_events = 1;
  assert_works(haul_node_open(&config, &server));
  snprintf(address, sizeof address, "unix://@haul-tls-%d", (int)getpid());
  assert_works(haul_node_listen(server, address));
  int code = connects_as(65534, address);
  if (code == -CANNOT_RUN) {
    printf("skipped another user's connections: user 65534 can run no program here\n");
    return;
  }
  assert_int_equal(code, HAUL_EAUTH);
  assert_int_equal(connects_as(0, address), 0);
  assert_works(haul_message_receive(server, &message, soon()));
  assert_string_equal(haul_peer_identity(message.peer), "uid:0");
  haul_message_release(&message);
  haul_node_close(server);
  config.any_user = 1;
  assert_works(haul_node_open(&config, &server));
  assert_works(haul_node_listen(server, address));
  assert_int_equal(connects_as(65534, address), 0);
  assert_works(haul_message_receive(server, &message, soon()));
  assert_string_equal(haul_peer_identity(message.peer), "uid:65534");
  haul_message_release(&message);
}

/* A process of another user that listens, until it is killed; 0: it cannot. */
static pid_t listen_as(uid_t user, const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
  int ready[2];
  char byte;
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  pid_t child = fork();
  if (child == 0) {
    memcpy(address.sun_path + 1, name, strlen(name));
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (setresuid(user, user, user) == 0 && bind(listener, (void *)&address, length) == 0 &&
        listen(listener, 8) == 0 && write(ready[1], "", 1) == 1)
      pause();
    _exit(CANNOT_RUN);
  }
  close(ready[1]);
  bool listens = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  if (listens)
    return child;
  waitpid(child, NULL, 0);
  return 0;
}

/* Any user can take an abstract name, so this side looks whose it is before it says anything. */
static void a_name_that_another_user_took_is_refused(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char name[64], address[96];
  haul_peer *peer;
  (void)state;
  if (geteuid() != 0) {
    printf("skipped another user's listener: only root can be another user\n");
    return;
  }
  snprintf(name, sizeof name, "haul-taken-%d", (int)getpid());
  snprintf(address, sizeof address, "unix://@%s", name);
  pid_t other = listen_as(65534, name);
  assert_true(other > 0);
  assert_works(haul_node_open(&config, &client));
  assert_fails(HAUL_EAUTH, haul_peer_connect(client, address, soon(), &peer));
  assert_non_null(strstr(haul_error_last()->text, "user 65534"));
  haul_node_close(client);
  config.any_user = 1;
  assert_works(haul_node_open(&config, &client));
  assert_fails(HAUL_ETIMEDOUT,
               haul_peer_connect(client, address, haul_deadline_in(100 * MS), &peer));
  kill(other, SIGKILL);
  waitpid(other, NULL, 0);
}

/* The other process: its exit status is the code. */
static int connect_and_tell(const char *address) {
  assert_works(haul_node_open(NULL, &client));
  int code = connects(client, address);
  haul_node_close(client);
  return -code;
}

static void certificate(const char *authority, const char *name) {
  char command[1024];
  snprintf(command, sizeof command,
           "cd %s && umask 077 && { test -f %s.pem || openssl req -x509 -newkey ec -pkeyopt "
           "ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=%s -keyout %s.key -out %s.pem; } "
           ">log 2>&1 && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "
           "/CN=%s -keyout %s.key -out %s.csr >>log 2>&1 && openssl x509 -req -in %s.csr -CA "
           "%s.pem -CAkey %s.key -CAcreateserial -days 2 -out %s.pem >>log 2>&1",
           folder, authority, authority, authority, authority, name, name, name, name, authority,
           authority, name);
  assert_int_equal(system(command), 0);
}

static struct haul_node *node_of(const char *name, const char *authority, const char *key) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char files[3][160];
  struct haul_node *node;
  snprintf(files[0], sizeof files[0], "%s/%s.pem", folder, name);
  snprintf(files[1], sizeof files[1], "%s/%s.key", folder, name);
  snprintf(files[2], sizeof files[2], "%s/%s.pem", folder, authority);
  config.certificate = files[0];
  config.private_key = files[1];
  config.authority = files[2];
  config.key = key ? in_folder(key) : NULL;
  config.peer_events = 1;
  assert_works(haul_node_open(&config, &node));
  return node;
}

static void certificates_of_one_authority_are_taken(void **state) {
  haul_peer *peer;
  struct haul_message message;
  (void)state;
  certificate("ours", "node1");
  certificate("ours", "node2");
  server = node_of("node1", "ours", NULL);
  client = node_of("node2", "ours", NULL);
  assert_works(haul_peer_connect(client, listening(server), soon(), &peer));
  assert_string_equal(haul_peer_identity(peer), "node1");
  assert_works(haul_message_receive(server, &message, soon()));
  assert_string_equal(haul_peer_identity(message.peer), "node2");
  haul_message_release(&message);
  haul_peer_close(peer);
}

static void those_of_another_are_not(void **state) {
  (void)state;
  certificate("ours", "node1");
  certificate("theirs", "node3");
  server = node_of("node1", "ours", NULL);
  client = node_of("node3", "ours", NULL);
  assert_fails(HAUL_EAUTH, connects(client, listening(server)));
  haul_node_close(client);
  client = node_of("node3", "theirs", NULL); /* and this side does not take the server's */
  char address[160];
  assert_works(haul_node_address(server, 0, address, sizeof address));
  assert_fails(HAUL_EAUTH, connects(client, address));
}

static void a_node_may_have_both(void **state) {
  (void)state;
  certificate("ours", "node1");
  certificate("ours", "node2");
  server = node_of("node1", "ours", "alice");
  const char *address = listening(server);
  client = node_with("alice");
  assert_works(connects(client, address));
  haul_node_close(client);
  client = node_of("node2", "ours", NULL);
  assert_works(connects(client, address));
  haul_node_close(client);
  client = node_with("bob"); /* and shows no certificate */
  assert_fails(HAUL_EAUTH, connects(client, address));
}

static void files_that_cannot_be_used_are_named(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.key = in_folder("not there");
  assert_fails(HAUL_EINVAL, haul_node_open(&config, &server));
  config.key = NULL;
  config.certificate = in_folder("alice");
  assert_fails(HAUL_EINVAL, haul_node_open(&config, &server));
  config.private_key = in_folder("alice");
  config.authority = in_folder("alice");
  assert_fails(HAUL_EINVAL, haul_node_open(&config, &server));
  assert_non_null(strstr(haul_error_last()->object, "alice"));
  server = NULL;
}

/* Forwards each connection to a node's address, records the bytes, and may flip a bit. */
static struct wire_tap {
  int listener;
  char address[160], to[160];
  char later[160];                 /* set: where all but the first connection go */
  _Atomic uint64_t bytes, flip_at; /* 0: none; else which byte to the node, over all connections */
  _Atomic bool seen;               /* `mark` went by */
  const char *mark;
  pthread_t accepts, threads[16];
  unsigned count;
} tap = {.listener = -1};

struct pass {
  int from, to;
  bool counted;
};

static void look_for_mark(const char *bytes, size_t length) {
  if (memmem(bytes, length, tap.mark, strlen(tap.mark)))
    atomic_store(&tap.seen, true);
}

static void *pass_on(void *argument) {
  struct pass pass = *(struct pass *)argument;
  static const size_t room = 65536;
  char *bytes = malloc(room);
  free(argument);
  for (ssize_t got; (got = read(pass.from, bytes, room)) > 0;) {
    look_for_mark(bytes, (size_t)got);
    uint64_t flip = atomic_load(&tap.flip_at);
    uint64_t before = pass.counted ? atomic_fetch_add(&tap.bytes, (uint64_t)got) : 0;
    if (pass.counted && flip && before <= flip && flip < before + (uint64_t)got)
      bytes[flip - before] ^= 1;
    if (!raw_send(pass.to, bytes, (size_t)got))
      break;
  }
  shutdown(pass.to, SHUT_RDWR);
  free(bytes);
  return NULL;
}

static void start_pass(int from, int to, bool counted) {
  struct pass *pass = malloc(sizeof *pass);
  *pass = (struct pass){from, to, counted};
  assert_int_equal(pthread_create(&tap.threads[tap.count++], NULL, pass_on, pass), 0);
}

static void *tap_all(void *unused) {
  (void)unused;
  for (int fd; tap.count < 14 && (fd = accept(tap.listener, NULL, NULL)) >= 0;) {
    int on = raw_connect(tap.count > 0 && tap.later[0] ? tap.later : tap.to);
    start_pass(fd, on, true);
    start_pass(on, fd, false); /* the two end each other; descriptors go with the process */
  }
  return NULL;
}

/* Once both sides are closed. */
static void end_tap(void) {
  if (tap.listener < 0)
    return;
  shutdown(tap.listener, SHUT_RDWR);
  pthread_join(tap.accepts, NULL);
  for (unsigned i = 0; i < tap.count; i++)
    pthread_join(tap.threads[i], NULL);
  close(tap.listener);
  tap.listener = -1;
}

/* Where to connect instead; close_nodes ends it. */
static const char *tapped(const char *to, const char *mark) {
  memset(&tap, 0, sizeof tap);
  snprintf(tap.to, sizeof tap.to, "%s", to);
  tap.mark = mark;
  tap.listener = raw_listen("tcp://127.0.0.1:0");
  struct sockaddr_in own;
  socklen_t size = sizeof own;
  assert_int_equal(getsockname(tap.listener, (struct sockaddr *)&own, &size), 0);
  snprintf(tap.address, sizeof tap.address, "tcp://127.0.0.1:%u", ntohs(own.sin_port));
  assert_int_equal(pthread_create(&tap.accepts, NULL, tap_all, NULL), 0);
  return tap.address;
}

static struct haul_node *node_that(const char *key, bool plain, bool process) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.key = key ? in_folder(key) : NULL;
  config.plain_data = plain;
  config.process_tls = process;
  assert_works(haul_node_open(&config, &node));
  return node;
}

/* Writes the mark and the bytes after it over tcp. Returns the code and the detail of the path. */
static int write_marked(const char *address, const char *mark, char *detail, size_t size) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, LENGTH};
  haul_region *from, *to;
  haul_peer *peer;
  haul_remote *remote;
  haul_transfer *transfer = NULL;
  struct haul_report report = HAUL_REPORT_INIT;
  assert_works(haul_region_alloc(server, (struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &to));
  assert_works(haul_region_publish(to, "to", HAUL_READ | HAUL_WRITE));
  assert_works(haul_region_alloc(client, (struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &from));
  for (size_t i = 0; i + 64 <= LENGTH; i += 64)
    snprintf((char *)haul_region_address(from) + i, 64, "%s", mark);
  assert_works(haul_peer_connect(client, address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "to", soon(), &remote));
  options.only = "tcp";
  int code = haul_write(remote, from, &piece, 1, &options, &transfer);
  if (code == 0)
    code = haul_transfer_wait(transfer, soon());
  if (code == 0) {
    assert_works(haul_transfer_report(transfer, &report));
    snprintf(detail, size, "%s", report.paths[0].detail);
    assert_memory_equal(haul_region_address(to), haul_region_address(from), LENGTH);
  }
  haul_transfer_release(transfer);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(from);
  haul_region_release(to);
  return code;
}

#define MARK "only the two nodes can read this text"

static void written_bytes_are_encrypted_on_the_wire(void **state) {
  char detail[64] = "";
  (void)state;
  server = node_that("alice", false, true);
  client = node_that("alice", false, true);
  assert_works(write_marked(tapped(listening(server), MARK), MARK, detail, sizeof detail));
  assert_non_null(strstr(detail, "TLS by the process"));
  assert_false(atomic_load(&tap.seen));
}

/* How often a key was changed while so much was written. */
static uint64_t changes_in(unsigned times) {
  const uint64_t lasts = tls_key_lasts, before = tls_keys_changed;
  char detail[64];
  const char *address = listening(server);
  tls_key_lasts = LENGTH / 4;
  for (unsigned i = 0; i < times; i++)
    assert_works(write_marked(address, MARK, detail, sizeof detail));
  tls_key_lasts = lasts;
  return tls_keys_changed - before;
}

static void keys_are_changed_and_bytes_go_on(void **state) {
  (void)state;
  server = node_that("alice", false, true);
  client = node_that("alice", false, true);
  assert_true(changes_in(3) >= 9);
}

/* Where there is one: what it has the key of it cannot change. */
static void a_kernel_is_spared_it(void **state) {
  (void)state;
  server = node_that("alice", false, false);
  client = node_that("alice", false, true);
  server->tls->kernel = true; /* or as if */
  assert_int_equal(changes_in(3), 0);
}

static void without_a_key_it_is(void **state) {
  char detail[64] = "";
  (void)state;
  server = node_that(NULL, false, false);
  client = node_that(NULL, false, false);
  assert_works(write_marked(tapped(listening(server), MARK), MARK, detail, sizeof detail));
  assert_null(strstr(detail, "TLS"));
  assert_true(atomic_load(&tap.seen));
}

static void plain_data_needs_both_sides(void **state) {
  char detail[64] = "";
  (void)state;
  server = node_that("alice", true, false);
  client = node_that("alice", true, false);
  assert_works(write_marked(tapped(listening(server), MARK), MARK, detail, sizeof detail));
  assert_non_null(strstr(detail, "not encrypted"));
  assert_true(atomic_load(&tap.seen));
}

static void a_server_alone_cannot_make_it_plain(void **state) {
  char detail[64] = "";
  (void)state;
  server = node_that("alice", true, true);
  client = node_that("alice", false, true);
  assert_works(write_marked(tapped(listening(server), MARK), MARK, detail, sizeof detail));
  assert_non_null(strstr(detail, "TLS"));
  assert_false(atomic_load(&tap.seen));
}

static void nor_can_a_client(void **state) {
  char detail[64] = "";
  (void)state;
  server = node_that("alice", false, true);
  client = node_that("alice", true, true);
  assert_fails(HAUL_ENOPATH, write_marked(listening(server), MARK, detail, sizeof detail));
  assert_non_null(strstr(haul_error_last()->hint, "plain_data"));
}

/* Nothing of a damaged record is taken: the write fails, and never reports that it is complete. */
/* Whoever stands between two nodes may lead their connections elsewhere. That this one knows the
 * other's authority too does not make it the peer: it learns neither token nor bytes. */
static void a_channel_to_another_node_is_not_used(void **state) {
  char address[160], detail[64];
  (void)state;
  for (int i = 1; i <= 3; i++) {
    snprintf(detail, sizeof detail, "node%d", i);
    certificate("ours", detail);
  }
  server = node_of("node1", "ours", NULL);
  client = node_of("node2", "ours", NULL);
  struct haul_node *other = node_of("node3", "ours", NULL);
  snprintf(address, sizeof address, "%s", listening(server));
  const char *way = tapped(address, MARK);
  snprintf(tap.later, sizeof tap.later, "%s", listening(other));
  assert_fails(HAUL_ENOPATH, write_marked(way, MARK, detail, sizeof detail));
  assert_non_null(strstr(haul_error_last()->hint, "node3"));
  haul_node_close(other);
}

static void a_flipped_bit_ends_the_connection(void **state) {
  char detail[64] = "";
  (void)state;
  server = node_that("alice", false, true);
  client = node_that("alice", false, true);
  const char *address = tapped(listening(server), MARK);
  atomic_store(&tap.flip_at, LENGTH / 2);
  int code = write_marked(address, MARK, detail, sizeof detail);
  assert_true(code == HAUL_EPEER || code == HAUL_EPATH || code == HAUL_ENOPATH);
}

/* The first bytes of a ClientHello, whose record would have `length` bytes. */
static int start_hello(const char *address, unsigned length, size_t sent) {
  uint8_t bytes[4096] = {22, 3, 1, (uint8_t)(length >> 8), (uint8_t)length, 1};
  int fd = raw_connect(address);
  assert_true(raw_send(fd, bytes, sent));
  return fd;
}

static void malformed_bytes_are_dropped(void **state) {
  (void)state;
  server = node_with("alice");
  const char *address = listening(server);
  int whole = start_hello(address, 300, 305), long_one = start_hello(address, 16384, 5);
  int silent = start_hello(address, 300, 3), half = start_hello(address, 300, 100);
  shutdown(half, SHUT_WR);
  assert_true(raw_ended(whole, BOUND));
  assert_true(raw_ended(long_one, BOUND));
  assert_true(raw_ended(half, 2 * S)); /* not at the end of its time */
  assert_true(raw_ended(silent, BOUND));
  close(whole), close(long_one), close(half), close(silent);
  client = node_with("alice");
  assert_works(connects(client, address));
}

/* A sanitizer's allocator tells no figures. */
static bool is_measured(void) {
  if (SANITIZED)
    printf("skipped what connections cost: a sanitizer's allocator does not say\n");
  return !SANITIZED;
}

/* All that was allocated and not freed, once nothing moves any more. */
static size_t allocated(void) {
  usleep(300000); /* only what is printed depends on it */
  return mallinfo2().uordblks;
}

/* What a stranger can make a node keep: printed, and at most 4 KiB a connection. */
static void strangers_cost_little(void **state) {
  enum { STRANGERS = 128 };
  int fds[STRANGERS];
  (void)state;
  server = node_with("alice");
  const char *address = listening(server);
  size_t before = allocated();
  for (int i = 0; i < STRANGERS; i++)
    fds[i] = start_hello(address, 2000, 1900);
  size_t each = (allocated() - before) / STRANGERS;
  if (is_measured()) {
    printf("a connection that has proved nothing costs %zu bytes\n", each);
    assert_true(each > 100 && each < 4096);
  }
  client = node_with("alice");
  assert_works(connects(client, address));
  for (int i = 0; i < STRANGERS; i++)
    close(fds[i]);
}

/* Who shows a certificate proves nothing before its second flight. The others wait, until those
 * that are silent have been so for too long. */
static void handshakes_with_certificates_are_bounded(void **state) {
  enum { STALLED = 64, PROVING = 32 };
  char number[16];
  int ready[2], left = 0;
  (void)state;
  certificate("ours", "node1");
  server = node_of("node1", "ours", NULL);
  const char *address = listening(server);
  size_t before = allocated();
  assert_int_equal(pipe(ready), 0);
  snprintf(number, sizeof number, "%d", STALLED);
  pid_t child = fork();
  if (child == 0) {
    char *arguments[] = {"tls", (char *)(uintptr_t)address, number, folder, NULL};
    dup2(ready[1], STDOUT_FILENO);
    execv("/proc/self/exe", arguments);
    _exit(99);
  }
  close(ready[1]);
  assert_int_equal(read(ready[0], &left, sizeof left), sizeof left);
  size_t each = (allocated() - before) / PROVING;
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(ready[0]);
  assert_int_equal(left, STALLED); /* one after the other */
  if (is_measured()) {
    printf("one that is about to show a certificate costs %zu bytes, of which there are %d\n", each,
           PROVING);
    assert_true(each < 65536);
  }
}

static ssize_t hear_nothing(int fd, struct msghdr *message, int flags) {
  (void)fd, (void)message, (void)flags;
  errno = EAGAIN;
  return -1;
}

/* The other process: opens `count` TLS sessions and stops after the hello. Reports the number of
 * sessions that the node answered. */
static int stall(const char *address, int count, const char *where) {
  char files[3][160];
  struct tls_context *context;
  int kept = 0;
  snprintf(files[0], sizeof files[0], "%s/node1.pem", where);
  snprintf(files[1], sizeof files[1], "%s/node1.key", where);
  snprintf(files[2], sizeof files[2], "%s/ours.pem", where);
  const struct tls_settings settings = {
      .certificate = files[0], .private_key = files[1], .authority = files[2]};
  assert_works(tls_context_open(&settings, &context));
  sys_ops.recvmsg = hear_nothing;
  int *fds = calloc((size_t)count, sizeof *fds);
  for (int i = 0; i < count; i++) {
    struct tls *tls;
    fds[i] = raw_connect(address);
    fcntl(fds[i], F_SETFL, O_NONBLOCK);
    assert_works(tls_open(context, fds[i], false, &tls));
    assert_int_equal(tls_handshake(tls, "there"), TLS_READ);
  }
  for (int i = 0; i < count; i++) {
    struct pollfd answer = {.fd = fds[i], .events = POLLIN};
    char byte;
    assert_int_equal(poll(&answer, 1, 10000), 1);
    kept += recv(fds[i], &byte, 1, 0) == 1;
  }
  assert_int_equal(write(STDOUT_FILENO, &kept, sizeof kept), sizeof kept);
  pause();
  return 0;
}

static void *connect_once(void *address) {
  return (void *)(intptr_t)connects(client, address);
}

/* As when a job starts: more than there may be of sessions that have proved nothing. */
static void a_burst_of_those_who_are_known_is_let_in(struct haul_node *from) {
  enum { BURST = 100 };
  pthread_t threads[BURST];
  const char *address = listening(server);
  client = from;
  for (int i = 0; i < BURST; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, connect_once, (void *)(uintptr_t)address),
                     0);
  for (int i = 0; i < BURST; i++) {
    void *code;
    assert_int_equal(pthread_join(threads[i], &code), 0);
    assert_int_equal((int)(intptr_t)code, 0);
  }
}

static void a_burst_with_keys(void **state) {
  (void)state;
  server = node_with("alice");
  a_burst_of_those_who_are_known_is_let_in(node_with("alice"));
}

static void a_burst_with_certificates(void **state) {
  (void)state;
  certificate("ours", "node1");
  certificate("ours", "node2");
  server = node_of("node1", "ours", NULL);
  a_burst_of_those_who_are_known_is_let_in(node_of("node2", "ours", NULL));
}

#define TEST(test) cmocka_unit_test_teardown(test, close_nodes)

int main(int argc, char **argv) {
  mallopt(M_ARENA_MAX, 1); /* mallinfo2 counts one arena */
  if (argc > 3)
    return stall(argv[1], atoi(argv[2]), argv[3]);
  if (argc > 1)
    return connect_and_tell(argv[1]);
  const struct CMUnitTest tests[] = {
      TEST(two_with_one_key_know_each_other_by_its_name),
      TEST(a_file_may_have_a_key_for_each_client),
      TEST(other_keys_are_refused),
      TEST(a_node_without_a_key_is_rejected_with_a_reason),
      TEST(the_response_may_arrive_at_any_moment),
      TEST(a_node_with_a_key_rejects_one_without),
      TEST(a_node_that_its_caller_drives_can_connect_to_itself),
      TEST(with_a_key_any_address_may_be_listened_on),
      TEST(a_region_is_visible_to_granted_identities_only),
      TEST(rails_are_not_parked_before_all_are_open),
      TEST(unix_sockets_are_for_their_own_user),
      TEST(a_name_that_another_user_took_is_refused),
      TEST(certificates_of_one_authority_are_taken),
      TEST(those_of_another_are_not),
      TEST(a_node_may_have_both),
      TEST(files_that_cannot_be_used_are_named),
      TEST(written_bytes_are_encrypted_on_the_wire),
      TEST(keys_are_changed_and_bytes_go_on),
      TEST(a_kernel_is_spared_it),
      TEST(without_a_key_it_is),
      TEST(plain_data_needs_both_sides),
      TEST(a_server_alone_cannot_make_it_plain),
      TEST(nor_can_a_client),
      TEST(a_channel_to_another_node_is_not_used),
      TEST(a_flipped_bit_ends_the_connection),
      TEST(malformed_bytes_are_dropped),
      TEST(strangers_cost_little),
      TEST(a_burst_with_keys),
      TEST(a_burst_with_certificates),
      TEST(handshakes_with_certificates_are_bounded),
  };
  return cmocka_run_group_tests_name("node/tls", tests, make_folder, remove_folder);
}
