/* SPDX-License-Identifier: MIT */
#include "core/loop.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"

#define EVENTS_A_ROUND   32
#define URGENT_NS        20000  /* longest sleep while a poller is urgent */
#define ROUNDS_PER_EPOLL 16     /* rounds of pollers between two epoll calls while spinning */
#define ASSIST_EVERY_NS  2000   /* between two rounds of a caller that polls */
#define ASSIST_TIGHT_NS  5000   /* between two polls of such a caller, at most */
#define ASSIST_LASTS_NS  50000  /* the thread leaves the descriptors to such a caller this long */
#define NAP_NS           100000 /* then the thread checks that the caller still polls */
#define NAP_MOST_NS      1000000
#define POLLERS_MAX      16384 /* that can rest */
#define POLLER_WORDS     (POLLERS_MAX / 64)

/* Watches or pollers by number; number 0 is never used. Events name a watch by number and
 * generation, so that an event fetched before loop_unwatch is dropped after it. */
struct numbers {
  struct number {
    void *owner; /* NULL: the number is free */
    uint32_t generation;
    uint32_t next_free; /* 0: none */
  } * list;
  uint32_t count, free;
};

struct loop {
  pthread_mutex_t lock;  /* see loop.h */
  int epoll_fd, wake_fd; /* wake_fd: an eventfd in the epoll set */
  int notify_fd;         /* own thread: the eventfd that loop_descriptor returns */
  int timer_fd;          /* no own thread: a timerfd in the epoll set, for due timers */
  bool own_thread;
  int64_t spin_ns;
  struct watch wake_watch, timer_watch;
  struct numbers watches;   /* lock */
  struct timers timers;     /* lock */
  struct list pollers;      /* lock */
  struct list *next_poller; /* lock: where run_pollers continues */
  struct numbers numbered;  /* lock: by poller->number */
  /* A bit for each number: loop_poll was called. A bit of a poller that was stopped since is
   * harmless. The exchange in take_asked pairs with loop_poll: it sees what the caller changed. */
  _Atomic uint64_t asked[POLLER_WORDS];
  _Atomic bool any_asked;
  _Atomic uint32_t running; /* 1: a thread runs rounds */
  /* AWAKE, or how that thread sleeps or is about to; pairs with loop_wake. */
  _Atomic uint32_t sleeping;
  _Atomic uint32_t woken; /* futex word of a nap */
  /* Times of loop_assist's last call and last round, and whether one is under way. */
  _Atomic int64_t polled_at, assisted_at;
  _Atomic bool assisting;
  _Atomic uint32_t notifications; /* futex word: incremented by loop_notify */
  _Atomic uint32_t waiters;       /* threads that sleep on it */
  _Atomic uint32_t ended;
  _Atomic bool polled; /* loop_descriptor was called */
  struct inbox deferred;
  _Atomic bool running_deferred; /* a thread runs deferred calls */
  bool urgent;                   /* lock: was a poller, when the running thread polled? */
  int64_t next_at;               /* running thread: when the next timer or poll is due */
  unsigned round;                /* running thread: rounds so far */
};

enum { AWAKE, IN_EPOLL, IN_NAP };

static void on_wake(struct watch *watch, uint32_t events) {
  (void)events;
  uint64_t count;
  ssize_t got = read(watch->fd, &count, sizeof count);
  (void)got; /* EAGAIN: another round read it */
}

static __attribute__((cold)) int open_descriptors(struct loop *loop) {
  loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  loop->notify_fd = loop->own_thread ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
  loop->timer_fd =
      loop->own_thread ? -1 : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (loop->epoll_fd < 0 || loop->wake_fd < 0 ||
      (loop->own_thread ? loop->notify_fd : loop->timer_fd) < 0)
    return error_system(errno, NULL, "epoll_create1, eventfd or timerfd_create");
  int code = loop_watch(loop, &loop->wake_watch, loop->wake_fd, EPOLLIN, on_wake);
  if (code == 0 && loop->timer_fd >= 0)
    code = loop_watch(loop, &loop->timer_watch, loop->timer_fd, EPOLLIN, on_wake);
  return code;
}

__attribute__((cold)) int loop_open(bool own_thread, int64_t spin_ns, struct loop **out) {
  struct loop *loop = alloc_zero(1, sizeof *loop);
  if (!loop)
    return error_memory("event loop");
  pthread_mutex_init(&loop->lock, NULL);
  list_init(&loop->pollers);
  loop->own_thread = own_thread;
  loop->spin_ns = spin_ns;
  int code = open_descriptors(loop);
  if (code) {
    loop_close(loop);
    return code;
  }
  *out = loop;
  return 0;
}

void loop_forked(struct loop *loop) {
  if (loop->epoll_fd >= 0)
    close(loop->epoll_fd);
  if (loop->wake_fd >= 0)
    close(loop->wake_fd);
  if (loop->notify_fd >= 0)
    close(loop->notify_fd);
  if (loop->timer_fd >= 0)
    close(loop->timer_fd);
}

__attribute__((cold)) void loop_close(struct loop *loop) {
  if (!loop)
    return;
  loop_forked(loop);
  alloc_free(loop->watches.list);
  alloc_free(loop->numbered.list);
  pthread_mutex_destroy(&loop->lock);
  alloc_free(loop);
}

void loop_lock(struct loop *loop) {
  pthread_mutex_lock(&loop->lock);
}

void loop_unlock(struct loop *loop) {
  pthread_mutex_unlock(&loop->lock);
}

/* False: no memory, or there are `most` already. */
static bool add_numbers(struct numbers *numbers, uint32_t most) {
  uint32_t count = numbers->count ? numbers->count * 2 : 16;
  struct number *list = count <= most ? alloc_resize(numbers->list, count * sizeof *list) : NULL;
  if (!list)
    return false;
  uint32_t first = numbers->count ? numbers->count : 1;
  for (uint32_t i = count - 1; i >= first; i--) { /* the lowest is used first */
    list[i] = (struct number){.next_free = numbers->free};
    numbers->free = i;
  }
  numbers->list = list;
  numbers->count = count;
  return true;
}

/* 0: there is none. */
__attribute__((cold)) static uint32_t take_number(struct numbers *numbers, uint32_t most,
                                                  void *owner) {
  if (!numbers->free && !add_numbers(numbers, most))
    return 0;
  uint32_t number = numbers->free;
  numbers->free = numbers->list[number].next_free;
  numbers->list[number].owner = owner;
  return number;
}

static void give_number(struct numbers *numbers, uint32_t number) {
  numbers->list[number].owner = NULL;
  numbers->list[number].next_free = numbers->free;
  numbers->free = number;
}

static _Thread_local const struct loop *current_loop; /* whose deferred call this thread runs */

bool loop_in_deferred(const struct loop *loop) {
  return current_loop == loop;
}

void loop_defer(struct loop *loop, struct deferred *deferred) {
  inbox_put(&loop->deferred, &deferred->link);
  loop_wake(loop);
}

/* Calls deferred meanwhile wait for the next batch. */
static int run_batch(struct loop *loop) {
  int count = 0;
  const struct loop *outer = current_loop;
  struct list calls = LIST_INIT(calls);
  inbox_take(&loop->deferred, &calls);
  current_loop = loop;
  for (struct list *item; (item = list_take(&calls));) {
    struct deferred *deferred = list_entry(item, struct deferred, link);
    deferred->run(deferred);
    count++;
  }
  current_loop = outer;
  return count;
}

/* Not within a deferred call. After clearing running_deferred the inbox is checked again: a thread
 * that found the flag set has left its call to this one. */
int loop_run_deferred(struct loop *loop) {
  int count = 0;
  while (!inbox_is_empty(&loop->deferred) && !atomic_exchange(&loop->running_deferred, true)) {
    count += run_batch(loop);
    atomic_store(&loop->running_deferred, false);
    atomic_thread_fence(memory_order_seq_cst);
  }
  return count;
}

static void give_slot(struct loop *loop, struct watch *watch) {
  give_number(&loop->watches, watch->slot);
  watch->slot = 0;
}

static struct epoll_event event_of(const struct watch *watch) {
  return (struct epoll_event){.events = watch->events,
                              .data.u64 = (uint64_t)watch->generation << 32 | watch->slot};
}

__attribute__((cold)) int loop_watch(struct loop *loop, struct watch *watch, int fd,
                                     uint32_t events,
                                     void (*ready)(struct watch *watch, uint32_t events)) {
  uint32_t slot = take_number(&loop->watches, UINT32_MAX, watch);
  if (!slot)
    return error_memory("event loop");
  *watch = (struct watch){.ready = ready, .fd = fd, .events = events, .slot = slot};
  watch->generation = ++loop->watches.list[slot].generation;
  struct epoll_event event = event_of(watch);
  if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
    int error = errno;
    give_slot(loop, watch);
    return error_system(error, NULL, "epoll_ctl");
  }
  return 0;
}

__attribute__((cold)) void loop_unwatch(struct loop *loop, struct watch *watch) {
  if (watch->slot == 0)
    return;
  epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
  give_slot(loop, watch);
}

void loop_change(struct loop *loop, struct watch *watch, uint32_t events) {
  if (watch->slot == 0 || watch->events == events)
    return;
  watch->events = events;
  struct epoll_event event = event_of(watch);
  epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event);
}

/* `passed`, unless NULL, is left to the loop's own thread. */
static int dispatch_events(struct loop *loop, const struct epoll_event *events, int count,
                           const struct watch *passed) {
  int handled = 0;
  for (int i = 0; i < count; i++) {
    uint32_t slot = (uint32_t)events[i].data.u64;
    uint32_t generation = (uint32_t)(events[i].data.u64 >> 32);
    if (slot >= loop->watches.count || loop->watches.list[slot].generation != generation)
      continue;
    struct watch *watch = loop->watches.list[slot].owner;
    if (!watch || watch == passed)
      continue;
    handled += watch != &loop->wake_watch && watch != &loop->timer_watch;
    watch->ready(watch, events[i].events);
  }
  return handled;
}

void loop_timer_start(struct loop *loop, struct timer *timer, int64_t at) {
  timers_start(&loop->timers, timer, at);
  if (loop->timers.first == timer)
    loop_wake(loop);
}

void loop_timer_start_about(struct loop *loop, struct timer *timer, int64_t at, int64_t slack) {
  loop_timer_start(loop, timer, at + slack - at % slack);
}

void loop_timer_stop(struct timer *timer) {
  timer_stop(timer);
}

static int fire_timers(struct loop *loop, int64_t now) {
  int fired = 0;
  for (struct timer *timer; (timer = loop->timers.first) && timer->at <= now; fired++) {
    timer_stop(timer);
    timer->fire(timer);
  }
  return fired;
}

__attribute__((cold)) void loop_poller_start(struct loop *loop, struct poller *poller,
                                             bool (*poll)(struct poller *poller)) {
  poller->poll = poll;
  poller->urgent = poller->rests = false;
  poller->number = take_number(&loop->numbered, POLLERS_MAX, poller);
  list_append(&loop->pollers, &poller->link);
}

__attribute__((cold)) void loop_poller_stop(struct loop *loop, struct poller *poller) {
  if (loop->next_poller == &poller->link)
    loop->next_poller = poller->link.next;
  list_remove(&poller->link);
  uint32_t number = poller->number;
  if (number && loop->numbered.list[number].owner == poller) /* stopping twice does no harm */
    give_number(&loop->numbered, number);
  poller->rests = false;
}

void loop_poll(struct loop *loop, const struct poller *poller) {
  if (poller->number) {
    atomic_fetch_or(&loop->asked[poller->number / 64], UINT64_C(1) << poller->number % 64);
    atomic_store(&loop->any_asked, true);
  }
  loop_wake(loop);
}

void loop_poller_resume(struct loop *loop, struct poller *poller) {
  if (!poller->rests)
    return;
  poller->rests = false;
  list_append(&loop->pollers, &poller->link);
}

static void resume_number(struct loop *loop, uint32_t number) {
  if (number < loop->numbered.count && loop->numbered.list[number].owner)
    loop_poller_resume(loop, loop->numbered.list[number].owner);
}

static void take_asked(struct loop *loop) {
  if (!atomic_load(&loop->any_asked) || !atomic_exchange(&loop->any_asked, false))
    return;
  for (uint32_t word = 0; word * 64 < loop->numbered.count; word++) {
    uint64_t asked = atomic_load(&loop->asked[word]);
    if (asked)
      asked = atomic_exchange(&loop->asked[word], 0);
    for (; asked; asked &= asked - 1)
      resume_number(loop, word * 64 + (uint32_t)__builtin_ctzll(asked));
  }
}

/* A poller may stop any poller, including itself. */
static int run_pollers(struct loop *loop, bool *urgent) {
  int handled = 0;
  for (struct list *item = loop->pollers.next; item != &loop->pollers; item = loop->next_poller) {
    struct poller *poller = list_entry(item, struct poller, link);
    loop->next_poller = item->next;
    handled += poller->poll(poller);
    if (item->next == item) /* stopped by its poll */
      continue;
    *urgent |= poller->urgent;
    poller->rests &= poller->number != 0;
    if (poller->rests)
      list_remove(item);
  }
  loop->next_poller = NULL;
  return handled;
}

/* epoll_pwait2(2) needs Linux 5.11, and some sandboxes lack it. Without it, sleeps are rounded up
 * to milliseconds. */
static int wait_events(int epoll_fd, struct epoll_event *events, const struct timespec *span) {
  int count = epoll_pwait2(epoll_fd, events, EVENTS_A_ROUND, span, NULL);
  if (count >= 0 || errno != ENOSYS)
    return count;
  int64_t ms = span ? span->tv_sec * 1000 + (span->tv_nsec + 999999) / 1000000 : -1;
  return epoll_wait(epoll_fd, events, EVENTS_A_ROUND, ms < INT_MAX ? (int)ms : INT_MAX);
}

/* Has loop_notify been called since the waiter of this thread last checked? `seen` NULL: no waiter.
 * Another waiter may have consumed the wake-up. */
static bool has_notification(const struct loop *loop, const uint32_t *seen) {
  return seen && atomic_load(&loop->notifications) != *seen;
}

/* Does a caller poll the descriptors? Its thread then sleeps without them, or each event would wake
 * it for nothing. */
static bool is_assisted(struct loop *loop, int64_t now) {
  return loop->own_thread &&
         (atomic_load(&loop->assisting) ||
          now - atomic_load_explicit(&loop->assisted_at, memory_order_relaxed) < ASSIST_LASTS_NS);
}

/* Sleeps until loop_wake or `until`, or until no caller polls: a wake-up takes the CPU from the
 * caller or its peer. If the caller stops, work waits for 1 ms at most, and no longer than it
 * polled. */
static void nap(struct loop *loop, int64_t now, int64_t until) {
  atomic_store(&loop->sleeping, IN_NAP); /* Dekker, as in poll_descriptors */
  int64_t span = NAP_NS;
  do {
    futex_wait(&loop->woken, 0, until - now < span ? until : now + span);
    now = clock_now();
    span = 2 * span < NAP_MOST_NS ? 2 * span : NAP_MOST_NS;
  } while (now < until && is_assisted(loop, now) && !atomic_load(&loop->woken));
  atomic_store(&loop->sleeping, AWAKE);
}

/* Waits for events until `until` and dispatches them. `until` in the past: does not sleep. */
static int poll_descriptors(struct loop *loop, int64_t now, int64_t until, const uint32_t *seen) {
  struct epoll_event events[EVENTS_A_ROUND];
  struct timespec span = {0, 0};
  bool sleeps = until > now;
  if (sleeps) {
    int64_t left = until - now;
    span = (struct timespec){left / 1000000000, left % 1000000000};
    /* Dekker with loop_wake, which sets woken and then reads sleeping; and with loop_notify, which
     * increments notifications before that. */
    atomic_store(&loop->sleeping, IN_EPOLL);
    sleeps = !atomic_load(&loop->woken) && !has_notification(loop, seen);
  }
  if (!sleeps)
    span = (struct timespec){0, 0};
  bool for_ever = until == HAUL_FOREVER && sleeps;
  int count = wait_events(loop->epoll_fd, events, for_ever ? NULL : &span);
  if (until > now)
    atomic_store(&loop->sleeping, AWAKE);
  if (count <= 0)
    return 0;
  loop_lock(loop);
  int handled = dispatch_events(loop, events, count, NULL);
  loop_unlock(loop);
  return handled;
}

/* Is a poller ready at once? `arm` stops no poller. */
static bool arm_pollers(struct loop *loop) {
  bool again = false;
  list_each(item, &loop->pollers) {
    struct poller *poller = list_entry(item, struct poller, link);
    again |= poller->arm && poller->arm(poller);
  }
  return again;
}

/* Runs timers and pollers. Pollers are armed before a sleep. *due becomes earlier when something is
 * due before it. */
static int run_callbacks(struct loop *loop, int64_t now, bool may_sleep, int64_t *due) {
  bool urgent = false;
  loop_lock(loop);
  int handled = fire_timers(loop, now);
  take_asked(loop);
  handled += run_pollers(loop, &urgent);
  loop->urgent = urgent;
  if (may_sleep && !handled && arm_pollers(loop))
    *due = now;
  if (loop->timers.first && loop->timers.first->at < *due)
    *due = loop->timers.first->at;
  loop_unlock(loop);
  if (urgent && now + URGENT_NS < *due)
    *due = now + URGENT_NS;
  return handled;
}

static int run_rounds(struct loop *loop, int64_t until, const uint32_t *seen) {
  int64_t began = clock_now();
  int64_t now = began;
  for (;;) {
    loop->next_at = HAUL_FOREVER;
    /* Before the callbacks, which then see what the wake was for. A later wake counts for the next
     * round or run. */
    bool woken = atomic_load_explicit(&loop->woken, memory_order_relaxed) &&
                 atomic_exchange(&loop->woken, 0);
    woken = has_notification(loop, seen) || woken;
    bool assisted = !seen && is_assisted(loop, now);
    bool spin = now - began < loop->spin_ns && !assisted;
    int handled = run_callbacks(loop, now, !spin && !woken && now < until, &loop->next_at);
    int64_t sleep_until = loop->next_at < until ? loop->next_at : until;
    spin |= handled > 0;
    if (!spin && !woken && sleep_until > now && assisted) {
      nap(loop, now, sleep_until);
    } else if (!spin) {
      handled += poll_descriptors(loop, now, woken ? now : sleep_until, seen);
    } else if (++loop->round % ROUNDS_PER_EPOLL == 0) {
      handled += poll_descriptors(loop, now, 0, NULL);
      /* The thread that makes progress may need this CPU, such as a software NIC's kernel thread or
       * a peer on a busy host. */
      if (!handled)
        sched_yield();
    }
    if (handled || woken || atomic_load_explicit(&loop->ended, memory_order_relaxed))
      return handled;
    if (until > now) /* else the call ends anyway, without a clock read */
      now = clock_now();
    if (now >= until)
      return 0;
  }
}

/* Arms pollers and the timerfd, so that the descriptor becomes readable. The last step of a run, as
 * its callbacks may have consumed an event. */
static void arm_timer_fd(struct loop *loop) {
  struct itimerspec at = {{0, 0}, {0, 0}};
  loop_lock(loop);
  if (arm_pollers(loop))
    loop->next_at = 0;
  loop_unlock(loop);
  if (loop->next_at != HAUL_FOREVER) {
    int64_t when = loop->next_at > 0 ? loop->next_at : 1;
    at.it_value = (struct timespec){when / 1000000000, when % 1000000000};
  }
  timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static void signal_eventfd(int descriptor) {
  uint64_t one = 1;
  ssize_t put = write(descriptor, &one, sizeof one);
  (void)put; /* EAGAIN: it is readable already */
}

/* Does a thread outside loop_run learn of events from the descriptors? */
static bool has_outside_waiter(struct loop *loop) {
  return loop->own_thread || atomic_load(&loop->polled);
}

static void wake_waiters(struct loop *loop) {
  atomic_fetch_add(&loop->notifications, 1);
  if (atomic_load(&loop->waiters))
    futex_wake(&loop->notifications);
}

/* `seen`: `notifications` when a waiter last checked its condition, or NULL. */
static int run_until(struct loop *loop, int64_t until, const uint32_t *seen) {
  uint32_t before = seen ? *seen : atomic_load(&loop->notifications);
  uint32_t idle = 0;
  if (!atomic_compare_exchange_strong(&loop->running, &idle, 1)) {
    atomic_fetch_add(&loop->waiters, 1);
    if (!atomic_load(&loop->ended))
      futex_wait(&loop->notifications, before, until);
    atomic_fetch_sub(&loop->waiters, 1);
    return 0;
  }
  int handled = run_rounds(loop, until, seen);
  if (!loop->own_thread && atomic_load_explicit(&loop->polled, memory_order_relaxed))
    arm_timer_fd(loop); /* the application polls the loop's descriptor between two runs */
  atomic_store(&loop->running, 0);
  if (atomic_load(&loop->woken) && !loop->own_thread && atomic_load(&loop->polled))
    signal_eventfd(loop->wake_fd); /* see loop_wake */
  /* A waiter may run next, or its condition may be met. */
  if (loop->own_thread && handled)
    loop_notify(loop);
  else
    wake_waiters(loop);
  return handled + loop_run_deferred(loop);
}

int loop_run(struct loop *loop, int64_t until) {
  return run_until(loop, until, NULL);
}

static void sleep_until_notified(struct loop *loop, bool (*done)(void *user), void *user,
                                 int64_t until) {
  /* Dekker with loop_notify, which increments notifications and then reads waiters. */
  atomic_fetch_add(&loop->waiters, 1);
  uint32_t seen = atomic_load(&loop->notifications);
  if (!done(user) && !atomic_load(&loop->ended))
    futex_wait(&loop->notifications, seen, until);
  atomic_fetch_sub(&loop->waiters, 1);
}

/* A round without timers, and without the eventfd: whoever reads that hides the wake-up from the
 * thread that sleeps. Events come first, as they may leave work for a poller. What the thread did
 * before its sleep is done again where it may be outdated. */
static int poll_once(struct loop *loop) {
  struct epoll_event events[EVENTS_A_ROUND];
  bool urgent = false;
  int handled = 0;
  if (pthread_mutex_trylock(&loop->lock) != 0)
    return 0;
  if (loop_has_ended(loop)) { /* whoever closes the node may hold no lock */
    loop_unlock(loop);
    return 0;
  }
  int count = wait_events(loop->epoll_fd, events, &(struct timespec){0, 0});
  if (count > 0)
    handled = dispatch_events(loop, events, count, &loop->wake_watch);
  take_asked(loop);
  int polled = run_pollers(loop, &urgent);
  handled += polled;
  bool again = handled && arm_pollers(loop);
  if (again || polled || (urgent && !loop->urgent)) /* a poller may leave work for one before it */
    loop_wake(loop);
  loop_unlock(loop);
  return handled;
}

bool loop_assist(struct loop *loop, int64_t now) {
  int64_t polled = atomic_load_explicit(&loop->polled_at, memory_order_relaxed);
  atomic_store_explicit(&loop->polled_at, now, memory_order_relaxed);
  if (!loop->own_thread || loop_has_ended(loop) || now - polled > ASSIST_TIGHT_NS ||
      now - atomic_load_explicit(&loop->assisted_at, memory_order_relaxed) < ASSIST_EVERY_NS ||
      atomic_exchange(&loop->assisting, true))
    return false;
  atomic_store_explicit(&loop->assisted_at, now, memory_order_relaxed);
  if (poll_once(loop) > 0)
    loop_notify(loop);
  atomic_store(&loop->assisting, false);
  return true;
}

bool loop_wait(struct loop *loop, bool (*done)(void *user), bool (*help)(void *user), void *user,
               int64_t until) {
  int64_t began = clock_now();
  for (int64_t now = began;; now = clock_now()) {
    uint32_t seen = atomic_load(&loop->notifications); /* before `done` is called */
    if (done(user))
      return true;
    if (now >= until || now - began < loop->spin_ns)
      loop_assist(loop, now);
    if (now >= until || atomic_load_explicit(&loop->ended, memory_order_relaxed))
      return done(user);
    if (help && help(user))
      continue;
    if (!loop->own_thread || loop_in_deferred(loop))
      run_until(loop, until, &seen);
    else if (now - began >= loop->spin_ns)
      sleep_until_notified(loop, done, user, until);
  }
}

void loop_wake(struct loop *loop) {
  /* Dekker: a runner sets sleeping or clears running, then reads woken. loop_descriptor sets
   * polled, then wakes. Without a descriptor the next runner reads woken before it sleeps. */
  atomic_store(&loop->woken, 1);
  uint32_t sleeping = atomic_load(&loop->sleeping);
  if (sleeping == IN_NAP)
    futex_wake(&loop->woken);
  else if (sleeping || (!atomic_load(&loop->running) && has_outside_waiter(loop)))
    signal_eventfd(loop->wake_fd);
}

void loop_notify(struct loop *loop) {
  wake_waiters(loop);
  if (!loop->own_thread)
    loop_wake(loop);
  else if (atomic_load_explicit(&loop->polled, memory_order_relaxed))
    signal_eventfd(loop->notify_fd);
}

__attribute__((cold)) int loop_descriptor(struct loop *loop) {
  if (!atomic_exchange(&loop->polled, true) && !loop->own_thread)
    loop_wake(loop); /* the first run arms the timerfd for existing timers */
  return loop->own_thread ? loop->notify_fd : loop->epoll_fd;
}

bool loop_clear_notification(struct loop *loop) {
  uint64_t count;
  return loop->own_thread && read(loop->notify_fd, &count, sizeof count) == (ssize_t)sizeof count;
}

void loop_end(struct loop *loop) {
  atomic_store(&loop->ended, 1);
  atomic_fetch_add(&loop->notifications, 1);
  futex_wake(&loop->notifications);
  loop_wake(loop);
}

bool loop_has_ended(struct loop *loop) {
  return atomic_load(&loop->ended);
}
