/* SPDX-License-Identifier: MIT
 * The real OpenSSL for the library's TLS, over sockets of the world: the library's own BIO calls
 * the world, so that OpenSSL never touches a descriptor.
 *
 * OpenSSL believes in one thread. So a call of it is closed: no other fiber runs until it returns,
 * also not in the calls of the world that its callbacks make. Its error queue belongs to the real
 * thread; a copy in each fiber makes one per fiber of it. Its random bytes come from the seed.
 *
 * Its objects lie in the real heap. The wrappers below know the owner of each session, context and
 * BIO method: a process that closes leaves none, and a death frees those of the dead. A BIO that
 * no session has yet, and a certificate that is being read, are lost then: some hundred bytes. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "calls.h"
#include "core/tls/openssl.h"
#include "sim.h"

#define NAME "libssl.so.3"
#define NO_LOAD_CONFIG                                                                             \
  0x80 /* OPENSSL_INIT_NO_LOAD_CONFIG: openssl.cnf differs between machines                        \
        */

static void *library; /* NULL: not on this machine */

static void *symbol(const char *name) {
  void *found = dlsym(library, name);
  if (!found)
    sim_fail("simulator", "OpenSSL lacks %s", name);
  return found;
}

/* RAND_METHOD of openssl/rand.h. */
static struct {
  int (*seed)(const void *from, int length);
  int (*bytes)(unsigned char *to, int length);
  void (*cleanup)(void);
  int (*add)(const void *from, int length, double entropy);
  int (*pseudorand)(unsigned char *to, int length);
  int (*status)(void);
} random_method;

/* A stream of its own (splitmix64): the schedule does not depend on how many bytes OpenSSL takes.
 */
static int random_draw(unsigned char *to, int length) {
  static uint64_t state;
  for (int i = 0; i < length; i++) {
    uint64_t mixed = (state += 0x9e3779b97f4a7c15) ^ sim_seed << 1;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    to[i] = (unsigned char)(mixed >> 56);
  }
  return 1;
}

static int random_ready(void) {
  return 1;
}

static unsigned long (*error_get)(void);
static void (*error_new)(void);
static void (*error_set_reason)(int place, int reason, const char *format, ...);

static void errors_to_thread(struct fiber *fiber) {
  for (unsigned i = 0; i < fiber->library_error_count; i++) {
    error_new();
    error_set_reason((int)(fiber->library_errors[i] >> 23 & 0xff), /* ERR_GET_LIB */
                     (int)(fiber->library_errors[i] & 0x7fffff), NULL);
  }
}

static void errors_to_fiber(struct fiber *fiber) {
  unsigned count = 0;
  for (unsigned long error; (error = error_get());)
    if (count < LIBRARY_ERRORS)
      fiber->library_errors[count++] = (uint32_t)error;
  fiber->library_error_count = count;
}

struct closed {
  void *target;
  int64_t cost;
  bool starves; /* memory may be short in it */
};

/* Return addresses of the closed calls in progress: a stub takes its own from the stack, so that
 * arguments there lie where the callee looks for them. */
#define DEPTH 16
void *sim_closed_returns[DEPTH];
void **sim_closed_top = sim_closed_returns;

bool sim_is_closed(void) {
  return sim_closed_top != sim_closed_returns;
}

static const struct closed *outermost;

void sim_closed_enter(const struct closed *closed);
void sim_closed_leave(void);

void sim_closed_enter(const struct closed *closed) {
  sim_point(closed->cost);
  if (sim_closed_top == sim_closed_returns + DEPTH)
    sim_fail("simulator", "OpenSSL's callbacks call OpenSSL %d deep", DEPTH);
  if (sim_is_closed())
    return;
  outermost = closed;
  errors_to_thread(fiber_current());
}

void sim_closed_leave(void) {
  int system = errno;
  if (!sim_is_closed())
    errors_to_fiber(fiber_current());
  errno = system;
}

/* A stub loads its struct closed into r11 and continues here. None of the calls has a variable
 * number of arguments, or takes or returns floating point numbers. */
void sim_closed_call(void);
__asm__(".text\n"
        ".globl sim_closed_call\n"
        ".type sim_closed_call,@function\n"
        "sim_closed_call:\n"
        "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n  push %r11\n"
        "  mov %r11,%rdi\n"
        "  call sim_closed_enter\n"
        "  pop %r11\n  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"
        "  mov sim_closed_top(%rip),%rax\n"
        "  pop (%rax)\n"
        "  add $8,%rax\n"
        "  mov %rax,sim_closed_top(%rip)\n"
        "  call *(%r11)\n"
        "  mov sim_closed_top(%rip),%r10\n"
        "  sub $8,%r10\n"
        "  mov %r10,sim_closed_top(%rip)\n"
        "  push (%r10)\n"
        "  push %rax\n"
        "  sub $8,%rsp\n"
        "  call sim_closed_leave\n"
        "  add $8,%rsp\n"
        "  pop %rax\n"
        "  ret\n"
        ".size sim_closed_call,.-sim_closed_call\n");

#define STUBS     96
#define STUB_SIZE 32

static struct stub {
  const char *name;
  struct closed closed;
} stubs[STUBS];
static uint8_t *stub_code;

static bool is_of_session(const char *name) {
  return strcmp(name, "SSL_do_handshake") == 0 || strcmp(name, "SSL_read_ex") == 0 ||
         strcmp(name, "SSL_write_ex") == 0;
}

static int64_t cost_of(const char *name) {
  if (strcmp(name, "SSL_do_handshake") == 0)
    return 100 * US; /* X25519, HKDF */
  return is_of_session(name) ? 3 * US : 100;
}

/* movabs $closed, %r11; movabs $sim_closed_call, %rax; jmp *%rax */
static void *make_stub(struct stub *stub) {
  uint8_t code[STUB_SIZE] = {0x49, 0xbb}, *at = stub_code + (stub - stubs) * STUB_SIZE;
  uint64_t closed = (uintptr_t)&stub->closed, call = (uintptr_t)sim_closed_call;
  memcpy(code + 2, &closed, 8);
  memcpy(code + 10, (uint8_t[]){0x48, 0xb8}, 2);
  memcpy(code + 12, &call, 8);
  memcpy(code + 20, (uint8_t[]){0xff, 0xe0}, 2);
  mprotect(stub_code, STUBS * STUB_SIZE, PROT_READ | PROT_WRITE);
  memcpy(at, code, sizeof code);
  mprotect(stub_code, STUBS * STUB_SIZE, PROT_READ | PROT_EXEC);
  return at;
}

static void *closed_symbol(const char *name, void *target) {
  for (size_t i = 0; i < STUBS; i++) {
    if (stubs[i].name && strcmp(stubs[i].name, name) != 0)
      continue;
    if (stubs[i].name)
      return stub_code + i * STUB_SIZE;
    stubs[i] =
        (struct stub){.name = strdup(name), .closed = {target, cost_of(name), is_of_session(name)}};
    return make_stub(&stubs[i]);
  }
  sim_fail("simulator", "OpenSSL has more than %d calls", STUBS);
}

uint64_t openssl_shortages;

/* Only calls on one session are refused memory: what OpenSSL sets up once for the real process
 * would be missed by all simulated ones. A handshake allocates some thousand times. */
static bool is_short(void) {
  const struct process *process = process_current();
  if (!sim_is_closed() || !outermost->starves || !process || !process->refuse_memory ||
      !sim_chance(1 + process->refuse_memory / 256))
    return false;
  sim_faults++;
  openssl_shortages++;
  return true;
}

static void *take_memory(size_t size, const char *file, int line) {
  (void)file, (void)line;
  return is_short() ? NULL : malloc(size);
}

static void *change_memory(void *bytes, size_t size, const char *file, int line) {
  (void)file, (void)line;
  if (size > 0)
    return is_short() ? NULL : realloc(bytes, size);
  free(bytes);
  return NULL;
}

static void give_memory(void *bytes, const char *file, int line) {
  (void)file, (void)line;
  free(bytes);
}

static void set_memory(void) {
  int (*set)(void *(*take)(size_t, const char *, int),
             void *(*change)(void *, size_t, const char *, int),
             void (*give)(void *, const char *, int));
  *(void **)(void *)&set = symbol("CRYPTO_set_mem_functions");
  if (!set(take_memory, change_memory, give_memory))
    sim_fail("simulator", "OpenSSL has taken memory already");
}

enum kind { SESSION, CONTEXT, METHOD, KINDS }; /* in the order in which they can be freed */

struct object {
  struct list link;
  const struct process *owner;
  enum kind kind;
  void *object;
};
static struct list objects = LIST_INIT(objects);

static void *own(enum kind kind, void *made) {
  if (!made)
    return NULL;
  struct object *object = calloc(1, sizeof *object);
  *object = (struct object){.owner = process_current(), .kind = kind, .object = made};
  list_append(&objects, &object->link);
  return made;
}

static void disown(enum kind kind, const void *made) {
  if (!made)
    return;
  list_each_safe(item, &objects) {
    struct object *object = list_entry(item, struct object, link);
    if (object->object != made || object->kind != kind || object->owner != process_current())
      continue;
    list_remove(&object->link);
    free(object);
    return;
  }
  sim_fail("heap", "%p of OpenSSL is freed and does not belong to the process", made);
}

static struct openssl real;

static ssl_context *make_context(const ssl_method *method) {
  return refuses_memory() ? NULL : own(CONTEXT, real.context_new(method));
}

static void free_context(ssl_context *context) {
  disown(CONTEXT, context);
  real.context_free(context);
}

static ssl_session *make_session(ssl_context *context) {
  return refuses_memory() ? NULL : own(SESSION, real.session_new(context));
}

static void free_session(ssl_session *session) {
  disown(SESSION, session);
  real.session_free(session);
}

static ssl_bio_method *make_method(int type, const char *name) {
  return refuses_memory() ? NULL : own(METHOD, real.bio_method(type, name));
}

static void free_method(ssl_bio_method *method) {
  disown(METHOD, method);
  real.bio_method_free(method);
}

static ssl_bio *make_bio(const ssl_bio_method *method) {
  return refuses_memory() ? NULL : real.bio_new(method);
}

static ssl_resumption *make_resumption(void) {
  return refuses_memory() ? NULL : real.resumption_new();
}

/* With their real types; -Wpedantic knows no other way to a void pointer. */
#define WRAPPER(name, function)                                                                    \
  { name, (void *)(uintptr_t)(function) }

static void *wrapper_of(const char *name) {
  const struct {
    const char *name;
    void *function;
  } wrappers[] = {
      WRAPPER("SSL_CTX_new", make_context), WRAPPER("SSL_CTX_free", free_context),
      WRAPPER("SSL_new", make_session),     WRAPPER("SSL_free", free_session),
      WRAPPER("BIO_meth_new", make_method), WRAPPER("BIO_meth_free", free_method),
      WRAPPER("BIO_new", make_bio),         WRAPPER("SSL_SESSION_new", make_resumption)};
  for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++)
    if (strcmp(wrappers[i].name, name) == 0)
      return wrappers[i].function;
  return NULL;
}

size_t openssl_objects(const struct process *process) {
  size_t count = 0;
  list_each(item, &objects) count += list_entry(item, struct object, link)->owner == process;
  return count;
}

static void free_object(const struct object *object) {
  if (object->kind == SESSION)
    real.session_free(object->object);
  else if (object->kind == CONTEXT)
    real.context_free(object->object);
  else
    real.bio_method_free(object->object);
}

void openssl_process_died(const struct process *process) {
  for (enum kind kind = SESSION; kind < KINDS; kind++)
    list_each_safe(item, &objects) {
      struct object *object = list_entry(item, struct object, link);
      if (object->owner != process || object->kind != kind)
        continue;
      free_object(object);
      list_remove(&object->link);
      free(object);
    }
}

static void fill_real(void) {
#define FILL(slot, name, result, parameters) *(void **)(void *)&real.slot = symbol(#name);
  OPENSSL_CALLS(FILL)
#undef FILL
  *(void **)(void *)&error_get = symbol("ERR_get_error");
  *(void **)(void *)&error_new = symbol("ERR_new");
  *(void **)(void *)&error_set_reason = symbol("ERR_set_error");
}

bool openssl_start(void) {
  int (*set_random)(const void *method);
  library = dlopen(NAME, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "sim: no seed draws TLS: %s\n", dlerror());
    return false;
  }
  set_memory();
  fill_real();
  real.init(NO_LOAD_CONFIG | OPENSSL_NO_ATEXIT, NULL);
  random_method.bytes = random_method.pseudorand = random_draw;
  random_method.status = random_ready;
  *(void **)(void *)&set_random = symbol("RAND_set_rand_method");
  set_random(&random_method);
  stub_code =
      mmap(NULL, STUBS * STUB_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stub_code == MAP_FAILED)
    sim_fail("simulator", "no memory for OpenSSL's stubs");
  return true;
}

bool openssl_is(const char *name) {
  return library && strcmp(name, NAME) == 0;
}

void *openssl_handle(void) {
  return library;
}

void *openssl_symbol(const char *name) {
  void *wrapper = wrapper_of(name), *target = wrapper ? wrapper : dlsym(library, name);
  return target ? closed_symbol(name, target) : NULL;
}
