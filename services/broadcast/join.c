/* SPDX-License-Identifier: MIT */
#include "broadcast/join.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define JOIN       "haul_broadcast_join"
#define POLL_NS    (500 * HAUL_MILLISECOND)
#define RETRY_NS   (250 * HAUL_MILLISECOND)
#define RETRY_MOST (8 * HAUL_SECOND)
#define WRITE_NS   (2 * HAUL_SECOND) /* a member writes its card sooner after it took a place */
/* A member reads all of N cards, of 184 bytes each, at most once in N times this. So N members that
 * all join at once read N times 23 KB a second from the source. */
#define CARD_NS (8 * HAUL_MILLISECOND)

#define LOCAL(field) offsetof(struct exchange, field)

/* ---- Exchanges ---- */

static struct haul_transfer_options control(haul_deadline until) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.priority = HAUL_PRIORITY_HIGH;
  options.deadline = sooner(until, CONTROL_NS);
  return options;
}

static int get(struct join *join, haul_remote *from, uint64_t remote, uint64_t local,
               uint64_t length, haul_deadline until) {
  struct haul_transfer_options options = control(until);
  struct haul_piece piece = {local, remote, length};
  return haul_read(join->exchange, from, &piece, 1, &options, NULL);
}

static int put(struct join *join, uint64_t remote, uint64_t local, uint64_t length,
               haul_deadline until) {
  struct haul_transfer_options options = control(until);
  struct haul_piece piece = {local, remote, length};
  return haul_write(join->board, join->exchange, &piece, 1, &options, NULL);
}

/* *swapped tells whether the word was `expected`. */
static int swap(struct join *join, uint64_t offset, uint64_t expected, uint64_t desired,
                haul_deadline until, bool *swapped) {
  struct haul_transfer_options options = control(until);
  int code = haul_compare_swap(join->exchange, LOCAL(word), join->board, offset, expected, desired,
                               &options, NULL);
  *swapped = !code && exchange_of(join)->word == expected;
  return code;
}

static int board_changed(struct join *join, uint64_t place, haul_deadline until) {
  struct haul_transfer_options options = control(until);
  uint64_t *word = &exchange_of(join)->word;
  int code = haul_fetch_add(join->exchange, LOCAL(word), join->board,
                            offsetof(struct board, generation), 1, &options, NULL);
  if (code)
    return code;
  uint64_t generation = *word + 1;
  *word = change_word(generation, place);
  return put(join, offsetof(struct board, changes[generation % CHANGES_KEPT]), LOCAL(word),
             sizeof *word, until);
}

int join_head(struct join *join, haul_deadline until, struct head *head) {
  for (int attempt = 0; attempt < 20; attempt++) { /* torn only while a version is published */
    int code = get(join, join->head, 0, LOCAL(head), sizeof *head, until);
    if (code)
      return code;
    *head = exchange_of(join)->head;
    if (head_is_valid(head))
      return 0;
  }
  return fail(HAUL_EPROTO, JOIN, join->broadcast->name,
              "run the same version of haul on both sides, of one byte order",
              "the source's head is invalid");
}

static int read_board(struct join *join, haul_deadline until) {
  int code = get(join, join->board, 0, LOCAL(board), sizeof(struct board), until);
  if (code)
    return code;
  struct board *board = &exchange_of(join)->board;
  if (board->magic == BOARD_MAGIC && board->capacity && board->capacity <= MEMBERS_MOST &&
      haul_remote_length(join->board) >= progress_offset(board->capacity, board->capacity))
    return 0;
  return fail(HAUL_EPROTO, JOIN, join->broadcast->name,
              "run the same version of haul on both sides, of one byte order",
              "the source's list of members is invalid");
}

/* ---- The list of members ---- */

static void take_cards(struct join *join, struct card *cards, uint32_t *order, uint64_t count) {
  free(join->cards);
  free(join->order);
  join->cards = cards;
  join->card_count = count;
  join->order = order;
  join->order_count = chain_order(cards, count, join->source_host, order);
  join->revision++;
}

static int get_cards(struct join *join, struct card *cards, uint64_t from, uint64_t to,
                     haul_deadline until) {
  int code = 0;
  for (uint64_t at = from; !code && at < to; at += CARDS_BATCH) {
    uint64_t count = to - at < CARDS_BATCH ? to - at : CARDS_BATCH;
    code = get(join, join->board, card_offset(at), LOCAL(cards), count * sizeof *cards, until);
    if (!code)
      memcpy(&cards[at], exchange_of(join)->cards, count * sizeof *cards);
  }
  return code;
}

/* The change that was made `back` changes before the last one. */
static uint64_t change_of(const struct board *board, uint64_t back) {
  return board->changes[(board->generation - back) % CHANGES_KEPT];
}

/* Whether the board names each change since the list was read. */
static bool knows_changes(const struct join *join, const struct board *board, uint64_t used) {
  uint64_t count = board->generation - join->generation;
  if (join->renewed || !join->cards || count > CHANGES_KEPT)
    return false;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t word = change_of(board, i), place = (uint32_t)word;
    if (word != change_word(board->generation - i, place) || place >= used)
      return false;
  }
  return true;
}

/* Reads the cards that changed, or all: they are many bytes for the source's link. */
static int get_changed(struct join *join, const struct board *board, struct card *cards,
                       uint64_t used, haul_deadline until) {
  int code = 0;
  if (!knows_changes(join, board, used)) {
    join->all_at = now_ns() + (int64_t)used * CARD_NS;
    return get_cards(join, cards, 0, used, until);
  }
  memcpy(cards, join->cards, (join->card_count < used ? join->card_count : used) * sizeof *cards);
  for (uint64_t i = 0; !code && i < board->generation - join->generation; i++) {
    uint64_t place = (uint32_t)change_of(board, i);
    code = get_cards(join, cards, place, place + 1, until);
  }
  return code;
}

/* Brings the list up to date. */
static int read_cards(struct join *join, haul_deadline until) {
  int code = read_board(join, until);
  if (code)
    return code;
  struct board board = exchange_of(join)->board;
  uint64_t used = board.used < board.capacity ? board.used : board.capacity;
  struct card *cards = calloc(used ? used : 1, sizeof *cards);
  uint32_t *order = calloc(used ? used : 1, sizeof *order);
  code = cards && order ? get_changed(join, &board, cards, used, until) : fail_memory(JOIN);
  if (code) {
    free(cards);
    free(order);
    return code;
  }
  take_cards(join, cards, order, used);
  join->capacity = board.capacity;
  join->generation = board.generation;
  join->renewed = false;
  return 0;
}

/* Raises the number of places in use to at least `used`. */
static int raise_used(struct join *join, uint64_t used, haul_deadline until) {
  bool swapped = false;
  int code = 0;
  while (!code && !swapped) {
    code = read_board(join, until);
    uint64_t now = exchange_of(join)->board.used;
    if (code || now >= used)
      return code;
    code = swap(join, offsetof(struct board, used), now, used, until, &swapped);
  }
  return code;
}

/* Takes a card off the board. If it is not there, the list is outdated, whatever the changes say:
 * the member that took it off was killed before it told the change. */
static int remove_card(struct join *join, uint64_t place, uint64_t owner, haul_deadline until) {
  bool swapped;
  int code = swap(join, card_offset(place), owner, 0, until, &swapped);
  if (!code && !swapped)
    join->renewed = true;
  return swapped ? board_changed(join, place, until) : code;
}

/* Only at first a card with its name on its host: two members of one name would remove each other
 * forever. */
static bool is_own(const struct join *join, const struct card *card) {
  if (!card_is_valid(card))
    return false;
  if (join->address[0] && strcmp(card->address, join->address) == 0)
    return true;
  return !join->listed && card->host == join->host && strcmp(card->name, join->name) == 0;
}

/* A process that was restarted finds the card of the one before, with its address, or its name. A
 * card of this one is invalid if another took its place while it was written. */
static int remove_own_remains(struct join *join, haul_deadline until) {
  int code = 0;
  for (uint64_t i = 0; !code && i < join->card_count; i++) {
    const struct card *card = &join->cards[i];
    if (is_own(join, card) || card->owner == join->id)
      code = remove_card(join, i, card->owner, until);
  }
  return code;
}

static int claim(struct join *join, uint64_t place, uint64_t owner, haul_deadline until,
                 bool *claimed) {
  int code = swap(join, card_offset(place), owner, join->id, until, claimed);
  if (*claimed)
    join->place = place;
  return code;
}

/* Takes a place whose owner has written no card for a while: it was killed meanwhile. */
static int claim_abandoned(struct join *join, haul_deadline until, bool *claimed) {
  struct exchange *exchange = exchange_of(join);
  haul_deadline written = haul_deadline_in(WRITE_NS);
  int code = 0;
  for (uint64_t i = 0; !code && !*claimed && i < join->card_count; i++) {
    uint64_t owner = join->cards[i].owner;
    if (!owner || card_is_valid(&join->cards[i]))
      continue;
    pause_until(join->broadcast, written < until ? written : until);
    code = get(join, join->board, card_offset(i), LOCAL(cards), sizeof(struct card), until);
    if (!code && exchange->cards[0].owner == owner && !card_is_valid(&exchange->cards[0]))
      code = claim(join, i, owner, until, claimed);
  }
  return code;
}

static int claim_place(struct join *join, haul_deadline until) {
  bool claimed = false;
  int code = 0;
  for (uint64_t n = 0; !code && !claimed && n < join->capacity; n++) { /* unused ones first */
    uint64_t i = (n + join->card_count) % join->capacity;
    const struct card *card = i < join->card_count ? &join->cards[i] : NULL;
    if (!card || !card->owner || is_own(join, card) || card->owner == join->id)
      code = claim(join, i, 0, until, &claimed);
  }
  if (!code && !claimed)
    code = claim_abandoned(join, until, &claimed);
  if (code || claimed)
    return code;
  return fail(HAUL_ELIMIT, JOIN, join->broadcast->name,
              "open the source with room for more members",
              "all %" PRIu64 " places of the broadcast are taken", join->capacity);
}

/* The list was read just before. */
static int enter(struct join *join, haul_deadline until) {
  struct exchange *exchange = exchange_of(join);
  int code = remove_own_remains(join, until);
  if (!code)
    code = claim_place(join, until);
  if (code)
    return code;
  join->progress.state = HAUL_BROADCAST_WAITING;
  exchange->progress = join->progress;
  code = put(join, progress_offset(join->capacity, join->place), LOCAL(progress),
             sizeof(struct progress), until);
  exchange->card = (struct card){.owner = join->id, .host = join->host};
  memcpy(exchange->card.name, join->name, sizeof join->name);
  memcpy(exchange->card.address, join->address, sizeof join->address);
  exchange->card.hash = card_hash(&exchange->card);
  if (!code) /* all but the owner, which is there */
    code = put(join, card_offset(join->place) + sizeof(uint64_t), LOCAL(card) + sizeof(uint64_t),
               sizeof(struct card) - sizeof(uint64_t), until);
  if (!code)
    code = raise_used(join, join->place + 1, until);
  if (!code)
    code = board_changed(join, join->place, until);
  if (!code)
    code = read_cards(join, until);
  join->entered = code == 0;
  join->listed |= join->entered;
  return code;
}

/* Whether no other member has taken our card off the board. */
static bool is_entered(const struct join *join) {
  return join->entered && join->place < join->card_count &&
         join->cards[join->place].owner == join->id && card_is_valid(&join->cards[join->place]);
}

int join_refresh(struct join *join, haul_deadline until) {
  int code = read_board(join, until);
  bool same = exchange_of(join)->board.generation == join->generation && !join->renewed;
  if (code || (same && join->entered))
    return code;
  code = read_cards(join, until);
  if (!code && !is_entered(join))
    code = enter(join, until);
  return code;
}

void join_remove(struct join *join, const struct card *card, haul_deadline until) {
  until = sooner(until, HAUL_SECOND);
  for (uint64_t i = 0; join->peer && i < join->card_count; i++)
    if (join->cards[i].owner == card->owner && card->owner != join->id)
      remove_card(join, i, card->owner, until);
}

/* ---- The connection ---- */

static void cancel(haul_transfer **transfer, haul_deadline until) {
  if (!*transfer)
    return;
  haul_transfer_cancel(*transfer);
  haul_transfer_wait(*transfer, until);
  haul_transfer_release(*transfer);
  *transfer = NULL;
}

void join_lost(struct join *join) {
  haul_deadline until = haul_deadline_in(HAUL_SECOND);
  cancel(&join->report, until);
  cancel(&join->look, until);
  haul_remote_release(join->head);
  haul_remote_release(join->board);
  haul_peer_close(join->peer);
  join->head = join->board = NULL;
  join->peer = NULL;
  join->renewed = true;
  join->retry_wait = join->retry_wait ? join->retry_wait * 2 : RETRY_NS;
  if (join->retry_wait > RETRY_MOST)
    join->retry_wait = RETRY_MOST;
  join->retry_at = now_ns() + join->retry_wait;
}

static int lookup(struct join *join, const char *what, haul_deadline until, haul_remote **remote) {
  char name[MEMBER_NAME_ROOM];
  member_name(join->broadcast, 0, what, name);
  return haul_peer_lookup(join->peer, name, until, remote);
}

int join_connect(struct join *join, haul_deadline until) {
  struct head head = {0};
  if (join->peer && haul_peer_status(join->peer) == 0)
    return 0;
  if (join->peer)
    join_lost(join);
  until = sooner(until, CONTROL_NS);
  int code = haul_peer_connect(join->broadcast->node, join->source, until, &join->peer);
  if (code)
    join->peer = NULL;
  if (!code)
    code = lookup(join, "head", until, &join->head);
  if (!code)
    code = lookup(join, "members", until, &join->board);
  if (!code)
    code = join_head(join, until, &head);
  if (!code) {
    join->source_host = head.host;
    code = join_refresh(join, until);
  }
  if (code)
    join_lost(join);
  else
    join->retry_wait = 0;
  return code;
}

/* ---- While it receives ---- */

static void report_begin(struct join *join) {
  struct haul_transfer_options options = control(HAUL_FOREVER);
  struct haul_piece piece = {LOCAL(progress_later), progress_offset(join->capacity, join->place),
                             sizeof(struct progress)};
  join->progress.beat++;
  exchange_of(join)->progress_later = join->progress;
  join->reported_at = now_ns();
  if (haul_write(join->board, join->exchange, &piece, 1, &options, &join->report))
    join->report = NULL;
}

static void look_begin(struct join *join) {
  struct haul_transfer_options options = control(HAUL_FOREVER);
  struct haul_piece piece = {LOCAL(board_later), 0, sizeof(struct board)};
  join->looked_at = now_ns();
  if (haul_read(join->exchange, join->board, &piece, 1, &options, &join->look)) {
    join->look = NULL;
    join_lost(join); /* as at an end of the connection that is known already */
  }
}

/* Whether the transfer has ended, which releases it. */
static bool has_ended(haul_transfer **transfer, int *code) {
  *code = 0;
  if (!*transfer)
    return false;
  *code = haul_transfer_test(*transfer);
  if (*code == 1)
    return false;
  haul_transfer_release(*transfer);
  *transfer = NULL;
  return true;
}

/* Whether the list is outdated, and may be read again. */
static bool may_refresh(const struct join *join, const struct board *board, int64_t now) {
  if (board->generation == join->generation && !join->renewed)
    return false;
  return now >= join->all_at || knows_changes(join, board, board->used);
}

void join_poll(struct join *join, haul_deadline until) {
  int code;
  int64_t now = now_ns();
  if (!join->peer) {
    if (now >= join->retry_at)
      join_connect(join, sooner(until, HAUL_SECOND));
    return;
  }
  has_ended(&join->report, &code);
  if (has_ended(&join->look, &code)) {
    if (!code && may_refresh(join, &exchange_of(join)->board_later, now))
      code = join_refresh(join, until);
    if (code) {
      join_lost(join);
      return;
    }
  }
  if (!join->report && now - join->reported_at >= POLL_NS)
    report_begin(join);
  if (!join->look && now - join->looked_at >= POLL_NS)
    look_begin(join);
}

void join_report(struct join *join, haul_deadline until) {
  if (!join->peer)
    return;
  cancel(&join->report, until);
  join->progress.beat++;
  exchange_of(join)->progress = join->progress;
  join->reported_at = now_ns();
  put(join, progress_offset(join->capacity, join->place), LOCAL(progress), sizeof(struct progress),
      until);
}

/* ---- Open and close ---- */

static int own_address(struct join *join, const char *given) {
  char text[160] = "";
  haul_node *node = join->broadcast->node;
  if (given)
    snprintf(text, sizeof text, "%s", given);
  else if (haul_node_address(node, 0, text, sizeof text))
    text[0] = 0; /* it does not listen */
  if (strstr(text, "//0.0.0.0:") || strstr(text, "//[::]:"))
    return fail(HAUL_EINVAL, JOIN, text, "set the option address to one that others reach",
                "no member can connect to a wildcard address");
  if (strlen(text) >= sizeof join->address || !text_is_valid(text, sizeof text))
    return fail(HAUL_EINVAL, JOIN, "address", "pass an address of at most 95 characters",
                "the address is too long, or not printable");
  memcpy(join->address, text, strlen(text) + 1);
  return 0;
}

static int own_name(struct join *join, const char *given) {
  char host[40] = "host";
  if (!given) {
    gethostname(host, sizeof host - 1);
    snprintf(join->name, sizeof join->name, "%s:%d",
             text_is_valid(host, sizeof host) ? host : "host", (int)getpid());
    return 0;
  }
  if (!given[0] || strlen(given) >= sizeof join->name || !text_is_valid(given, sizeof join->name))
    return fail(HAUL_EINVAL, JOIN, "member", "pass 1 to 63 printable ASCII characters, no blanks",
                "the name of the member is invalid");
  memcpy(join->name, given, strlen(given) + 1);
  return 0;
}

static int check_arguments(haul_node *node, const char *address, const char *name,
                           const struct haul_broadcast_options *options,
                           haul_broadcast **broadcast) {
  if (!node || !address || !name || !broadcast)
    return fail(HAUL_EINVAL, JOIN, NULL, "pass a node, an address, a name and room for a handle",
                "an argument is NULL");
  if (options->size != sizeof *options)
    return fail(HAUL_EINVAL, JOIN, "options", "start from HAUL_BROADCAST_OPTIONS_INIT",
                "the options have an unknown size");
  if (options->in_flight > IN_FLIGHT_MOST)
    return fail(HAUL_EINVAL, JOIN, "in_flight", "pass at most 64", "%u chunks are too many",
                options->in_flight);
  if (!name[0] || strlen(name) > NAME_MOST || !text_is_valid(name, NAME_MOST + 1) ||
      strlen(address) >= sizeof((struct join *)0)->source)
    return fail(HAUL_EINVAL, JOIN, "name",
                "pass 1 to 200 printable ASCII characters, no blanks, and an address of up to 255",
                "the name or the address is invalid");
  return 0;
}

static int join_open(struct join *join, const struct haul_broadcast_options *options) {
  struct haul_place host = {HAUL_HOST, 0};
  int code = own_address(join, options->address);
  join->host = host_number();
  if (!code)
    code = own_name(join, options->member);
  if (!code)
    code =
        haul_region_alloc(join->broadcast->node, host, sizeof(struct exchange), 0, &join->exchange);
  while (!code && !join->id)
    if (getrandom(&join->id, sizeof join->id, 0) != sizeof join->id)
      code = fail(HAUL_ESYSTEM, JOIN, NULL, "see getrandom(2)", "no random number");
  return code;
}

int haul_broadcast_join(haul_node *node, const char *address, const char *name,
                        const struct haul_broadcast_options *options, haul_deadline until,
                        haul_broadcast **broadcast) {
  struct haul_broadcast_options defaults = HAUL_BROADCAST_OPTIONS_INIT;
  if (!options)
    options = &defaults;
  int code = check_arguments(node, address, name, options, broadcast);
  if (code)
    return code;
  haul_broadcast *made = calloc(1, sizeof *made);
  struct join *join = calloc(1, sizeof *join);
  if (!made || !join) {
    free(made);
    free(join);
    return fail_memory(JOIN);
  }
  made->node = node;
  made->options = *options;
  made->options.address = made->options.member = NULL; /* the caller's strings */
  made->join = join;
  join->broadcast = made;
  snprintf(made->name, sizeof made->name, "%s", name);
  snprintf(join->source, sizeof join->source, "%s", address);
  code = join_open(join, options);
  if (!code)
    code = join_connect(join, until);
  if (code)
    haul_broadcast_close(made);
  else
    *broadcast = made;
  return code;
}

/* Takes the card off the board, if the source still responds. */
static void leave(struct join *join) {
  haul_deadline until = haul_deadline_in(HAUL_SECOND);
  if (!join->peer || !join->entered || haul_peer_status(join->peer))
    return;
  join->progress.state = HAUL_BROADCAST_LEFT;
  join_report(join, until);
  remove_card(join, join->place, join->id, until);
}

void join_close(struct join *join) {
  struct haul_error error = *haul_error_last(); /* of the call that fails */
  if (!join)
    return;
  leave(join);
  join_lost(join);
  haul_region_release(join->exchange);
  free(join->cards);
  free(join->order);
  free(join->feeders);
  free(join);
  if (error.code)
    haul_error_set(&error);
}

/* ---- Wait for a version ---- */

/* At the deadline. The last look may have had no time left: the error of the one before is the
 * cause. */
static int next_failed(const haul_broadcast *broadcast, int code, const struct haul_error *before) {
  if (code == HAUL_ETIMEDOUT && before->code) {
    haul_error_set(before);
    return before->code;
  }
  return code ? code
              : fail(HAUL_ETIMEDOUT, "haul_broadcast_next", broadcast->name,
                     "publish one at the source", "the source has no newer version");
}

int haul_broadcast_next(haul_broadcast *broadcast, uint64_t after, haul_deadline until,
                        struct haul_broadcast_version *version) {
  struct haul_error before = {0};
  if (!broadcast || !broadcast->join || !version)
    return fail(HAUL_EINVAL, "haul_broadcast_next", NULL,
                "pass a broadcast of haul_broadcast_join, and room",
                "this is no receiver, or an argument is NULL");
  struct join *join = broadcast->join;
  for (;;) {
    struct head head = {0};
    int code = join_connect(join, until);
    if (!code)
      code = join_head(join, until, &head);
    if (!code && head.version > after) {
      join->known = head;
      *version = (struct haul_broadcast_version){head.version, head.length, head.chunk};
      return 0;
    }
    if (now_ns() >= until || code == HAUL_ECLOSED)
      return next_failed(broadcast, code, &before);
    before = code ? *haul_error_last() : (struct haul_error){0};
    if (code)
      join_lost(join);
    else
      join_poll(join, until);
    pause_until(broadcast, sooner(until, 100 * HAUL_MILLISECOND));
  }
}
