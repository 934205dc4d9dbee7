/* SPDX-License-Identifier: MIT */
#include "screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "fail.h"
#include "process.h"
#include "text.h"

/* xterm's private modes 1049 (second screen) and 25 (cursor); all common terminals have them. */
#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[0m\033[?25h\033[?1049l"

static const int ends[] = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT, SIGSEGV,
                           SIGABRT, SIGBUS,  SIGILL, SIGFPE,  SIGPIPE};

static struct termios before;
static bool has_keys; /* standard input is the terminal, whose mode is `before` */
static volatile sig_atomic_t is_open, resized;

/* Async-signal-safe, as are the functions below that signals call. Returns 0 or an error number. */
static int put_bytes(const char *bytes, size_t length) {
  while (length > 0) {
    ssize_t written = write(STDOUT_FILENO, bytes, length);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return written < 0 ? errno : EIO;
    bytes += written;
    length -= (size_t)written;
  }
  return 0;
}

static void enter(void) {
  struct termios mode = before;
  mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  mode.c_cc[VMIN] = 0;
  mode.c_cc[VTIME] = 0;
  if (has_keys)
    tcsetattr(STDIN_FILENO, TCSANOW, &mode);
  put_bytes(ENTER, sizeof ENTER - 1);
  is_open = 1;
}

void screen_close(void) {
  if (!is_open)
    return;
  is_open = 0;
  put_bytes(LEAVE, sizeof LEAVE - 1);
  if (has_keys)
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void on_end(int number) {
  int kept = errno;
  if ((number == SIGINT || number == SIGTERM) && !interrupted()) {
    interrupt_raise(number);
    errno = kept;
    return;
  }
  screen_close();
  signal(number, SIG_DFL);
  raise(number);
}

static void on_stop(int number) {
  int kept = errno;
  bool was_open = is_open;
  (void)number;
  screen_close();
  raise(SIGSTOP); /* until SIGCONT */
  if (was_open)
    enter();
  resized = 1;
  errno = kept;
}

static void on_resize(int number) {
  (void)number;
  resized = 1;
}

static void handle(int number, void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler};
  sigaction(number, &action, NULL);
}

bool screen_is_possible(void) {
  const char *terminal = getenv("TERM");
  return isatty(STDOUT_FILENO) && terminal && *terminal && strcmp(terminal, "dumb") != 0;
}

void screen_open(void) {
  has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0;
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
    handle(ends[i], on_end);
  handle(SIGTSTP, on_stop);
  handle(SIGWINCH, on_resize);
  atexit(screen_close);
  enter();
}

struct screen_size screen_size(void) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0)
    return (struct screen_size){24, 80};
  return (struct screen_size){size.ws_row, size.ws_col};
}

/* Another thread may receive a signal, which then does not end the poll. */
int screen_wait(int64_t nanoseconds) {
  int64_t until = now_ns() + nanoseconds;
  for (int64_t left; !interrupted() && !resized && (left = until - now_ns()) > 0;) {
    struct pollfd keys = {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    int64_t slice = left < INTERRUPT_SLICE_NS ? left : INTERRUPT_SLICE_NS;
    unsigned char key;
    if (poll(&keys, 1, (int)((slice + 999999) / 1000000)) <= 0)
      continue;
    if (read(STDIN_FILENO, &key, 1) == 1)
      return key;
    has_keys = has_keys && !(keys.revents & (POLLHUP | POLLERR | POLLNVAL));
  }
  resized = 0;
  return 0;
}

void drawing_begin(struct drawing *drawing, bool colors) {
  *drawing = (struct drawing){.size = screen_size(), .colors = colors};
  drawing->out = open_memstream(&drawing->bytes, &drawing->length);
  if (!drawing->out)
    exit(fail_because(NULL, "out of memory"));
  fputs("\033[H", drawing->out);
}

void drawing_text(struct drawing *drawing, const char *style, const char *text) {
  if (drawing->row >= drawing->size.rows || drawing->column >= drawing->size.columns || !*text)
    return;
  if (drawing->colors && style)
    fprintf(drawing->out, "\033[%sm", style);
  for (; *text && drawing->column < drawing->size.columns; text++, drawing->column++)
    fputc(*text >= ' ' && *text < 0x7f ? *text : '?', drawing->out);
  if (drawing->colors && style)
    fputs("\033[0m", drawing->out);
}

void drawing_cell(struct drawing *drawing, const char *style, int width, bool right,
                  const char *text) {
  char cell[256];
  width = width < (int)sizeof cell - 1 ? width : (int)sizeof cell - 1;
  snprintf(cell, sizeof cell, right ? "%*.*s" : "%-*.*s", width, width, text);
  drawing_text(drawing, style, cell);
}

/* Places each line by its number: text in the last column leaves the cursor there or not. */
void drawing_next_line(struct drawing *drawing) {
  if (drawing->row >= drawing->size.rows)
    return;
  if (drawing->column < drawing->size.columns)
    fputs("\033[K", drawing->out);
  drawing->row++;
  drawing->column = 0;
  if (drawing->row < drawing->size.rows)
    fprintf(drawing->out, "\033[%d;1H", drawing->row + 1);
}

int drawing_end(struct drawing *drawing) {
  if (drawing->row < drawing->size.rows)
    fputs("\033[J", drawing->out);
  if (fclose(drawing->out))
    exit(fail_because(NULL, "out of memory"));
  int error = put_bytes(drawing->bytes, drawing->length);
  free(drawing->bytes);
  return error;
}
