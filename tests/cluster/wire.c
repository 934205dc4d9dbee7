/* SPDX-License-Identifier: MIT
 * A link in user space, for kernels whose queues cannot delay or lose: a TAP device in each of two
 * network namespaces, and this process between them.
 *
 *   cluster_wire NEAR-NAMESPACE NEAR-DEVICE FAR-DEVICE ORDERS SEED
 *
 * The far end is in the namespace that it is started in. It says "ready" when both are there. From
 * the FIFO it is then told, a line each, what holds from now on and in both directions:
 *
 *   rate KBIT       a second; 0: as fast as it goes
 *   delay MS
 *   loss PERMILLE   of the frames, chosen by the seed
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MOST 2048
#define FRAMES     4096        /* on their way in one direction; what finds no room is lost */
#define QUEUE_MOST 200000000LL /* ns that a frame waits for its turn at most, else it is lost */
#define READ_MOST  64          /* frames of one end before the other one's turn */

struct frame {
  int64_t due;
  size_t length;
  unsigned char bytes[FRAME_MOST];
};

/* A ring of frames, in the order in which they came and leave. */
struct direction {
  int from, to;
  int64_t free_at; /* when the last frame will have left, at this rate */
  unsigned head, count;
  struct frame *frames;
};

static struct {
  int64_t rate, delay, loss; /* bits a second, ns, of 1000 */
  uint64_t chance;
} now;

static void fail(const char *what) {
  fprintf(stderr, "cluster_wire: %s: %s\n", what, strerror(errno));
  exit(1);
}

static int64_t clock_now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* xorshift64* (Vigna 2016) */
static unsigned chance(unsigned of) {
  now.chance ^= now.chance >> 12;
  now.chance ^= now.chance << 25;
  now.chance ^= now.chance >> 27;
  return (unsigned)((now.chance * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % of;
}

static int open_tap(const char *name) {
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0)
    fail(name);
  return fd;
}

/* A TAP device stays in the namespace in which it was opened. */
static int open_tap_in(const char *name_space, const char *name) {
  char path[256];
  snprintf(path, sizeof path, "/run/netns/%s", name_space);
  int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  int there = open(path, O_RDONLY | O_CLOEXEC);
  if (here < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0)
    fail(path);
  int fd = open_tap(name);
  if (setns(here, CLONE_NEWNET) != 0)
    fail("setns");
  close(here);
  close(there);
  return fd;
}

static void take(struct direction *way, const struct frame *frame, int64_t at) {
  int64_t begins = way->free_at > at ? way->free_at : at;
  if (way->count == FRAMES || begins - at > QUEUE_MOST)
    return;
  if (now.loss && chance(1000) < (unsigned)now.loss)
    return;
  way->free_at = now.rate ? begins + (int64_t)frame->length * 8 * 1000000000LL / now.rate : begins;
  struct frame *slot = &way->frames[(way->head + way->count++) % FRAMES];
  slot->length = frame->length;
  memcpy(slot->bytes, frame->bytes, frame->length);
  slot->due = way->free_at + now.delay;
}

static void take_all(struct direction *way) {
  static struct frame frame;
  for (int i = 0; i < READ_MOST; i++) {
    ssize_t got = read(way->from, frame.bytes, sizeof frame.bytes);
    if (got <= 0)
      return; /* nothing more, or a device that is down */
    frame.length = (size_t)got;
    take(way, &frame, clock_now());
  }
}

/* What is due leaves. A device that is down takes nothing, as with any other wire. */
static void give_all(struct direction *way) {
  int64_t at = clock_now();
  while (way->count > 0 && way->frames[way->head].due <= at) {
    const struct frame *frame = &way->frames[way->head];
    if (write(way->to, frame->bytes, frame->length) < 0 && errno != EIO && errno != EAGAIN)
      fail("write");
    way->head = (way->head + 1) % FRAMES;
    way->count--;
  }
}

static int64_t next_due(const struct direction *way) {
  return way->count > 0 ? way->frames[way->head].due : INT64_MAX;
}

static void obey(const char *line) {
  char what[16];
  long value;
  if (sscanf(line, "%15s %ld", what, &value) != 2 || value < 0)
    fail(line);
  if (strcmp(what, "rate") == 0)
    now.rate = value * 1000;
  else if (strcmp(what, "delay") == 0)
    now.delay = value * 1000000;
  else if (strcmp(what, "loss") == 0)
    now.loss = value;
  else
    fail(line);
}

/* A line is written in one piece, so it is read in one. */
static void hear(int orders) {
  char text[256];
  ssize_t got = read(orders, text, sizeof text - 1);
  text[got > 0 ? got : 0] = '\0';
  for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line;
       line = strtok_r(NULL, "\n", &rest))
    obey(line);
}

static void carry(struct direction ways[2], int orders) {
  for (;;) {
    int64_t due = next_due(&ways[0]) < next_due(&ways[1]) ? next_due(&ways[0]) : next_due(&ways[1]);
    int64_t left = due == INT64_MAX ? 1000000000 : due - clock_now();
    left = left > 0 ? left : 0;
    struct timespec wait = {left / 1000000000, left % 1000000000};
    struct pollfd ends[] = {
        {ways[0].from, POLLIN, 0}, {ways[1].from, POLLIN, 0}, {orders, POLLIN, 0}};
    if (ppoll(ends, 3, &wait, NULL) < 0 && errno != EINTR)
      fail("ppoll");
    for (int i = 0; i < 2; i++) {
      if (ends[i].revents & (POLLERR | POLLHUP))
        exit(0); /* the namespace is gone, and its device with it */
      if (ends[i].revents & POLLIN)
        take_all(&ways[i]);
      give_all(&ways[i]);
    }
    if (ends[2].revents & POLLIN)
      hear(orders);
  }
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fputs("usage: cluster_wire NEAR-NAMESPACE NEAR-DEVICE FAR-DEVICE ORDERS SEED\n", stderr);
    return 2;
  }
  int near = open_tap_in(argv[1], argv[2]), far = open_tap(argv[3]);
  int orders = open(argv[4], O_RDWR | O_NONBLOCK | O_CLOEXEC); /* it never ends */
  struct direction ways[2] = {{.from = near, .to = far}, {.from = far, .to = near}};
  for (int i = 0; i < 2; i++)
    ways[i].frames = calloc(FRAMES, sizeof *ways[i].frames);
  if (orders < 0 || !ways[0].frames || !ways[1].frames)
    fail(argv[4]);
  now.chance = strtoull(argv[5], NULL, 0) | 1;
  puts("ready");
  fflush(stdout);
  carry(ways, orders);
}
