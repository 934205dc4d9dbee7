/* SPDX-License-Identifier: MIT
 * One connection. OpenSSL reads and writes through our BIO: non-blocking, without SIGPIPE, and with
 * buffers after the handshake, so that one system call moves several records. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "core/tls/session.h"

#define IN_BYTES 131072u
/* Encrypted bytes that are sent at a time; and room for the record beyond, and OpenSSL's own
 * records. */
#define OUT_SEND  65536u
#define OUT_BYTES (OUT_SEND + 3 * (TLS_RECORD + 256))
/* Smaller spans are gathered into one record. */
#define SMALL 8192u
/* RFC 8446, 5.5, allows 2^24.5 records of 16 KiB. */
uint64_t tls_key_lasts = UINT64_C(1) << 37;
_Atomic uint64_t tls_keys_changed;

static int bio_stop(struct tls *tls, ssl_bio *bio, ssize_t result, int way) {
  if (result < 0 && (errno == EAGAIN || errno == EINTR)) {
    tls->context->openssl->bio_flag(bio, way | OPENSSL_BIO_RETRY);
    tls->full = way == OPENSSL_BIO_WRITE;
  } else if (result < 0) {
    tls->system = errno;
  }
  return result < 0 ? -1 : 0;
}

static ssize_t socket_receive(const struct tls *tls, void *to, size_t length, int flags) {
  struct iovec span = {to, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  return sys_ops.recvmsg(tls->fd, &message, MSG_DONTWAIT | flags);
}

static ssize_t socket_send(const struct tls *tls, const void *from, size_t length) {
  struct iovec span = {(void *)(uintptr_t)from, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  return sys_ops.sendmsg(tls->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Peeks the first byte: TLS begins with a handshake or an alert record (RFC 8446, 5.1). Nothing may
 * be read before. As recv(2). */
static ssize_t peek_type(struct tls *tls) {
  uint8_t first;
  ssize_t got = socket_receive(tls, &first, 1, MSG_PEEK);
  if (got > 0) {
    tls->looked = true;
    tls->bare = first != 22 && first != 21;
  }
  return got;
}

static int bio_read(ssl_bio *bio, char *to, int length) {
  struct tls *tls = openssl_open()->bio_get(bio);
  tls->context->openssl->bio_unflag(bio, OPENSSL_BIO_READ | OPENSSL_BIO_WRITE | OPENSSL_BIO_RETRY);
  ssize_t seen = tls->looked ? 1 : peek_type(tls);
  if (seen <= 0)
    return bio_stop(tls, bio, seen, OPENSSL_BIO_READ);
  if (tls->bare)
    return -1;
  if (!tls->in) {
    ssize_t got = socket_receive(tls, to, (size_t)length, 0);
    return got > 0 ? (int)got : bio_stop(tls, bio, got, OPENSSL_BIO_READ);
  }
  if (tls->in_start == tls->in_end) {
    ssize_t got = socket_receive(tls, tls->in, IN_BYTES, 0);
    if (got <= 0)
      return bio_stop(tls, bio, got, OPENSSL_BIO_READ);
    tls->in_start = 0;
    tls->in_end = (size_t)got;
  }
  size_t have = tls->in_end - tls->in_start;
  size_t here = have < (size_t)length ? have : (size_t)length;
  memcpy(to, tls->in + tls->in_start, here);
  tls->in_start += here;
  return (int)here;
}

static int bio_write(ssl_bio *bio, const char *from, int length) {
  struct tls *tls = openssl_open()->bio_get(bio);
  tls->context->openssl->bio_unflag(bio, OPENSSL_BIO_READ | OPENSSL_BIO_WRITE | OPENSSL_BIO_RETRY);
  if (!tls->out) {
    ssize_t put = socket_send(tls, from, (size_t)length);
    return put > 0 ? (int)put : bio_stop(tls, bio, put, OPENSSL_BIO_WRITE);
  }
  if ((size_t)length > OUT_BYTES - tls->out_end) {
    errno = EAGAIN;
    return bio_stop(tls, bio, -1, OPENSSL_BIO_WRITE);
  }
  memcpy(tls->out + tls->out_end, from, (size_t)length);
  tls->out_end += (size_t)length;
  return length;
}

static long bio_control(ssl_bio *bio, int command, long number, void *pointer) {
  (void)bio, (void)number, (void)pointer;
  return command == OPENSSL_BIO_FLUSH;
}

ssl_bio_method *tls_bio_method(const struct openssl *openssl) {
  ssl_bio_method *method = openssl->bio_method(OPENSSL_BIO_SOURCE_SINK | 100, "haul");
  if (!method)
    return NULL;
  openssl->bio_method_read(method, bio_read);
  openssl->bio_method_write(method, bio_write);
  openssl->bio_method_control(method, bio_control);
  return method;
}

int tls_open(struct tls_context *context, int descriptor, bool server, struct tls **out) {
  const struct openssl *openssl = context->openssl;
  struct tls *tls = alloc_zero(1, sizeof *tls);
  if (!tls)
    return error_memory("TLS");
  *tls = (struct tls){.context = context,
                      .fd = descriptor,
                      .server = server,
                      .looked = server,
                      .left = tls_key_lasts};
  tls->ssl = openssl->session_new(context->ssl);
  ssl_bio *bio = tls->ssl ? openssl->bio_new(context->bio) : NULL;
  if (!bio || !openssl->session_set(tls->ssl, 0, tls)) {
    openssl->session_free(tls->ssl);
    alloc_free(tls);
    return error_memory("TLS");
  }
  pthread_mutex_init(&tls->lock, NULL);
  openssl->bio_set(bio, tls);
  openssl->bio_ready(bio, 1);
  openssl->session_bio(tls->ssl, bio, bio);
  if (server)
    openssl->session_accept(tls->ssl);
  else
    openssl->session_connect(tls->ssl);
  *out = tls;
  return 0;
}

void tls_forget_secrets(struct tls *tls) {
  explicit_bzero(tls->secrets, sizeof tls->secrets);
}

void tls_free(struct tls *tls) {
  if (!tls)
    return;
  tls->context->openssl->session_free(tls->ssl);
  tls_forget_secrets(tls);
  alloc_free(tls->in);
  alloc_free(tls->out);
  if (tls->clear)
    explicit_bzero(tls->clear, OUT_SEND);
  alloc_free(tls->clear);
  pthread_mutex_destroy(&tls->lock);
  alloc_free(tls);
}

bool tls_buffer(struct tls *tls, bool reads) {
  tls->in = reads ? alloc_zero(1, IN_BYTES) : NULL;
  tls->out = alloc_zero(1, OUT_BYTES);
  tls->clear = reads ? alloc_zero(1, OUT_SEND) : NULL;
  return tls->out && ((tls->in && tls->clear) || !reads);
}

bool tls_takes_updates(const struct tls_context *context) {
  return !context->kernel;
}

void tls_may_update(struct tls *tls, bool may) {
  tls->updates = may;
}

bool tls_is_keyed(struct tls *tls) {
  return tls->context->openssl->session_by_key(tls->ssl) == 1;
}

const char *tls_identity(const struct tls *tls) {
  return tls->identity;
}

static int error_auth(const struct tls *tls, const char *object, const char *reason) {
  if (tls->server)
    return error_set(HAUL_EAUTH, 0, object, NULL, "it did not prove who it is: %s", reason);
  /* OpenSSL names an alert of the peer after the version that introduced it: "sslv3 alert …". */
  if (strstr(reason, " alert "))
    reason = "the peer rejected this side's key or certificate";
  return error_set(
      HAUL_EAUTH, 0, object,
      tls->context->keys.count
          ? error_hint("compare both sides' files with `haul key show FILE`: both need key '%s'",
                       tls->context->name)
          : "check that each side's certificate is signed by an authority that the other trusts",
      "the peer and this side do not accept each other: %s", reason);
}

/* Neither a shortage of memory here nor a fault of the peer says anything about keys. OpenSSL calls
 * some shortages an internal error. */
static int error_handshake(const struct tls *tls, const char *object) {
  int number;
  const char *reason = openssl_reason(tls->context->openssl, &number);
  if (tls->no_memory || number == OPENSSL_NO_MEMORY)
    return error_memory("TLS");
  if (number == OPENSSL_INTERNAL)
    return error_set(HAUL_ESYSTEM, EIO, object, "check whether memory is short",
                     "OpenSSL failed during authentication: %s", reason);
  if (number == OPENSSL_INTERNAL_ALERT)
    return error_set(HAUL_EPEER, 0, object, "its log says why",
                     "the peer failed during authentication");
  return error_auth(tls, object, reason);
}

/* Sets the identity from the peer's certificate; psk_find or psk_use set it for a key. */
static int name_peer(struct tls *tls, const char *object) {
  const struct openssl *openssl = tls->context->openssl;
  ssl_certificate *certificate = openssl->session_peer(tls->ssl);
  if (!certificate)
    return openssl->session_by_key(tls->ssl) && tls->identity[0]
               ? 0
               : error_auth(tls, object, "it presented neither key nor certificate");
  char name[256] = "";
  int length = openssl->name_text(openssl->certificate_subject(certificate), OPENSSL_COMMON_NAME,
                                  name, sizeof name);
  openssl->certificate_free(certificate);
  if (length <= 0 || (size_t)length != strlen(name) || !key_name_is_valid(name))
    return error_auth(tls, object,
                      "the common name of its certificate is not 1 to 63 printable characters");
  if (keys_find(&tls->context->keys, name, strlen(name)))
    return error_auth(tls, object, "the name in its certificate is that of a key here");
  snprintf(tls->identity, sizeof tls->identity, "%.63s", name);
  return 0;
}

int tls_handshake(struct tls *tls, const char *object) {
  const struct openssl *openssl = tls->context->openssl;
  openssl->error_clear();
  int done = openssl->session_handshake(tls->ssl);
  if (done == 1)
    return name_peer(tls, object);
  int error = openssl->session_error(tls->ssl, done);
  if (tls->bare)
    return TLS_BARE;
  if (error == OPENSSL_WANT_READ)
    return TLS_READ;
  if (error == OPENSSL_WANT_WRITE)
    return TLS_WRITE;
  if (error == OPENSSL_ERROR_SSL)
    return error_handshake(tls, object);
  return error_set(HAUL_EPEER, tls->system, object,
                   tls->system ? strerror(tls->system) : "the peer closed it; its log says why",
                   "the connection ended during authentication");
}

/* With the lock. 0, or -1 with errno. */
static int out_flush(struct tls *tls) {
  while (tls->out && tls->out_start < tls->out_end) {
    ssize_t put = socket_send(tls, tls->out + tls->out_start, tls->out_end - tls->out_start);
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0)
      return -1;
    tls->out_start += (size_t)put;
  }
  tls->out_start = tls->out_end = 0;
  return 0;
}

static void out_make_room(struct tls *tls) {
  if (tls->out_start == 0)
    return;
  memmove(tls->out, tls->out + tls->out_start, tls->out_end - tls->out_start);
  tls->out_end -= tls->out_start;
  tls->out_start = 0;
}

/* A position in a message. */
struct place {
  const struct msghdr *message;
  size_t span, at;
};

static size_t place_span(struct place *place, char **bytes) {
  while (place->span < place->message->msg_iovlen &&
         place->at == place->message->msg_iov[place->span].iov_len) {
    place->span++;
    place->at = 0;
  }
  if (place->span == place->message->msg_iovlen)
    return 0;
  const struct iovec *span = &place->message->msg_iov[place->span];
  *bytes = (char *)span->iov_base + place->at;
  return span->iov_len - place->at;
}

static void place_advance(struct place *place, size_t bytes) {
  char *unused;
  for (size_t left; bytes > 0 && (left = place_span(place, &unused)) > 0;) {
    size_t step = bytes < left ? bytes : left;
    place->at += step;
    bytes -= step;
  }
}

/* The rest of the message, as spans. */
static unsigned long spans_of(const struct place *from, struct iovec *spans, unsigned long room) {
  struct place place = *from;
  unsigned long count = 0;
  char *bytes;
  for (size_t length; count < room && (length = place_span(&place, &bytes)) > 0; place.at += length)
    spans[count++] = (struct iovec){bytes, length};
  return count;
}

/* Copies the next bytes to `clear`, by the kernel: the memory may be a truncated file mapping, or
 * unmapped, and then this fails with EFAULT instead of a signal. 0 at the end of the message, -1
 * with errno. */
static ssize_t copy_clear(struct tls *tls, const struct place *place) {
  struct iovec spans[64], to = {tls->clear, OUT_SEND};
  unsigned long count = spans_of(place, spans, 64);
  if (count == 0)
    return 0;
  ssize_t got = tls->unsafe ? -1 : sys_ops.vm_read(getpid(), &to, 1, spans, count, 0);
  if (got > 0 || (!tls->unsafe && errno == EFAULT))
    return got;
  tls->unsafe = true; /* a sandbox forbids the call */
  size_t used = 0;
  for (unsigned long i = 0; i < count && used < OUT_SEND; i++) {
    size_t step = spans[i].iov_len < OUT_SEND - used ? spans[i].iov_len : OUT_SEND - used;
    memcpy(tls->clear + used, spans[i].iov_base, step);
    used += step;
  }
  return (ssize_t)used;
}

/* The bytes of the next record: in place, or gathered. */
static size_t next_record(const struct place *from, char *gathered, char **bytes) {
  struct place place = *from;
  size_t length = place_span(&place, bytes), used = 0;
  if (length >= SMALL || length == 0)
    return length < TLS_RECORD ? length : TLS_RECORD;
  while (used < TLS_RECORD && (length = place_span(&place, bytes)) > 0) {
    size_t step = length < TLS_RECORD - used ? length : TLS_RECORD - used;
    memcpy(gathered + used, *bytes, step);
    used += step;
    place.at += step;
  }
  *bytes = gathered;
  return used;
}

/* With the lock. */
static void renew_key(struct tls *tls, size_t bytes) {
  if (!tls->updates)
    return;
  if (tls->left > bytes) {
    tls->left -= bytes;
    return;
  }
  tls->context->openssl->session_key_update(tls->ssl, OPENSSL_UPDATE_OWN);
  atomic_fetch_add_explicit(&tls_keys_changed, 1, memory_order_relaxed);
  tls->left = tls_key_lasts;
}

/* Bytes of `clear` that are not encrypted yet. */
struct fetched {
  size_t at, end;
};

/* The errno for a failure of OpenSSL that is not the socket's. `otherwise`: if it is not OpenSSL's
 * own. */
static int failure(const struct tls *tls, int otherwise) {
  int number;
  openssl_reason(tls->context->openssl, &number);
  return number == OPENSSL_NO_MEMORY ? ENOMEM : number == OPENSSL_INTERNAL ? EIO : otherwise;
}

/* With the lock. Encrypts one record. The buffer has room for it; without a buffer the socket may
 * have none, and OpenSSL keeps the record for the next call, which passes the same bytes. */
static bool encrypt(struct tls *tls, struct place *place, struct fetched *fetched, size_t *total) {
  char gathered[TLS_RECORD], *bytes;
  size_t length, put = 0;
  if (tls->clear) {
    ssize_t got = fetched->at < fetched->end ? 1 : copy_clear(tls, place);
    if (got <= 0)
      return false;
    if (fetched->at == fetched->end)
      *fetched = (struct fetched){0, (size_t)got};
    bytes = tls->clear + fetched->at;
    length = fetched->end - fetched->at < TLS_RECORD ? fetched->end - fetched->at : TLS_RECORD;
    fetched->at += length;
  } else {
    length = next_record(place, gathered, &bytes);
  }
  if (length == 0)
    return false;
  renew_key(tls, length);
  tls->full = false;
  if (!tls->context->openssl->session_write(tls->ssl, bytes, length, &put)) {
    if (tls->full)
      errno = EAGAIN;
    else
      tls->system = tls->system ? tls->system : failure(tls, EIO);
    return false;
  }
  place_advance(place, put);
  *total += put;
  return true;
}

static ssize_t send_records(struct tls *tls, struct place *place) {
  struct fetched fetched = {0, 0};
  size_t total = 0;
  bool more = out_flush(tls) == 0 || errno == EAGAIN;
  tls->context->openssl->error_clear();
  while (more && tls->out_end - tls->out_start < OUT_SEND) {
    out_make_room(tls);
    more = encrypt(tls, place, &fetched, &total);
    if (more && tls->out_end >= OUT_SEND)
      more = out_flush(tls) == 0;
  }
  if (total > 0) {
    out_flush(tls);
    return (ssize_t)total;
  }
  errno = tls->system ? tls->system : errno;
  return -1;
}

ssize_t tls_send(struct tls *tls, const struct msghdr *message) {
  struct place place = {message, 0, 0};
  pthread_mutex_lock(&tls->lock);
  errno = EAGAIN;
  ssize_t put = send_records(tls, &place);
  pthread_mutex_unlock(&tls->lock);
  return put;
}

int tls_flush(struct tls *tls) {
  pthread_mutex_lock(&tls->lock);
  int code = out_flush(tls);
  pthread_mutex_unlock(&tls->lock);
  return code;
}

bool tls_owes(struct tls *tls) {
  pthread_mutex_lock(&tls->lock);
  bool owes = tls->out_start < tls->out_end;
  pthread_mutex_unlock(&tls->lock);
  return owes;
}

/* With the lock. At most one record. 0 at the end, -1 with errno. */
static ssize_t decrypt(struct tls *tls, char *to, size_t length) {
  size_t got = 0;
  int done = tls->context->openssl->session_read(tls->ssl, to, length, &got);
  if (done)
    return (ssize_t)got;
  int error = tls->context->openssl->session_error(tls->ssl, done);
  if (error == OPENSSL_CLOSED)
    return 0;
  errno = error == OPENSSL_WANT_READ || error == OPENSSL_WANT_WRITE ? EAGAIN
          : error == OPENSSL_ERROR_SSL                              ? failure(tls, EBADMSG)
          : tls->system                                             ? tls->system
                                                                    : ECONNRESET;
  return -1;
}

ssize_t tls_receive(struct tls *tls, const struct msghdr *message) {
  struct place place = {message, 0, 0};
  size_t total = 0, length;
  ssize_t got = 1;
  char *to;
  pthread_mutex_lock(&tls->lock);
  tls->context->openssl->error_clear();
  while (got > 0 && (length = place_span(&place, &to)) > 0) {
    got = decrypt(tls, to, length);
    if (got > 0) {
      place_advance(&place, (size_t)got);
      total += (size_t)got;
    }
  }
  tls->holds = got > 0;
  pthread_mutex_unlock(&tls->lock);
  return total > 0 || got > 0 ? (ssize_t)total : got;
}

bool tls_holds(struct tls *tls) {
  pthread_mutex_lock(&tls->lock);
  bool holds = tls->holds;
  pthread_mutex_unlock(&tls->lock);
  return holds;
}

size_t tls_pending(struct tls *tls) {
  pthread_mutex_lock(&tls->lock);
  int pending = tls->context->openssl->session_pending(tls->ssl);
  pthread_mutex_unlock(&tls->lock);
  return pending > 0 ? (size_t)pending : 0;
}
