/* SPDX-License-Identifier: MIT
 * The source's board: exchanges with it, the members' cards, and this node's place. */
#include "broadcast/members.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_NS (2 * HAUL_SECOND) /* a member writes its card sooner after it took a place */
/* A member reads all of N cards, of 184 bytes each, at most once in N times this. So N members that
 * all join at once read N times 23 KB a second from the source. */
#define CARD_NS (8 * HAUL_MILLISECOND)

/* ---- Exchanges ---- */

static int get(struct join *join, haul_remote *from, uint64_t remote, uint64_t local,
               uint64_t length, haul_deadline until) {
  struct haul_transfer_options options = control_options(until);
  struct haul_piece piece = {local, remote, length};
  return haul_read(join->exchange, from, &piece, 1, &options, NULL);
}

int member_put(struct join *join, uint64_t remote, uint64_t local, uint64_t length,
               haul_deadline until) {
  struct haul_transfer_options options = control_options(until);
  struct haul_piece piece = {local, remote, length};
  return haul_write(join->board, join->exchange, &piece, 1, &options, NULL);
}

/* *swapped tells whether the word was `expected`. */
static int swap(struct join *join, uint64_t offset, uint64_t expected, uint64_t desired,
                haul_deadline until, bool *swapped) {
  struct haul_transfer_options options = control_options(until);
  int code = haul_compare_swap(join->exchange, LOCAL(word), join->board, offset, expected, desired,
                               &options, NULL);
  *swapped = !code && exchange_of(join)->word == expected;
  return code;
}

static int board_changed(struct join *join, uint64_t place, haul_deadline until) {
  struct haul_transfer_options options = control_options(until);
  uint64_t *word = &exchange_of(join)->word;
  int code = haul_fetch_add(join->exchange, LOCAL(word), join->board,
                            offsetof(struct board, generation), 1, &options, NULL);
  if (code)
    return code;
  uint64_t generation = *word + 1;
  *word = change_word(generation, place);
  return member_put(join, offsetof(struct board, changes[generation % CHANGES_KEPT]), LOCAL(word),
                    sizeof *word, until);
}

int join_head(struct join *join, haul_deadline until, struct head *head) {
  for (int attempt = 0; attempt < 20; attempt++) { /* torn only while a version is published */
    int code = get(join, join->head, 0, LOCAL(head), sizeof *head, until);
    if (code)
      return code;
    *head = exchange_of(join)->head;
    join->seen = head_is_valid(head);
    if (join->seen)
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

bool member_knows_changes(const struct join *join, const struct board *board, uint64_t used) {
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
  if (!member_knows_changes(join, board, used)) {
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
  if (code || !cards || !order) {
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

int member_remove(struct join *join, uint64_t place, uint64_t owner, haul_deadline until) {
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
      code = member_remove(join, i, card->owner, until);
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
  code = member_put(join, progress_offset(join->capacity, join->place), LOCAL(progress),
                    sizeof(struct progress), until);
  exchange->card = (struct card){.owner = join->id, .host = join->host};
  memcpy(exchange->card.name, join->name, sizeof join->name);
  memcpy(exchange->card.address, join->address, sizeof join->address);
  exchange->card.hash = card_hash(&exchange->card);
  if (!code) /* all but the owner, which is there */
    code =
        member_put(join, card_offset(join->place) + sizeof(uint64_t),
                   LOCAL(card) + sizeof(uint64_t), sizeof(struct card) - sizeof(uint64_t), until);
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
      member_remove(join, i, card->owner, until);
}
