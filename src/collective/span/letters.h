/* Letters: keyed messages between processes, each delivered exactly once, or
 * failed by name. A state machine over tow_env; all functions are for its loop.
 *
 * A process has a region for each peer, with slots for each of the peer's
 * devices. A letter is one bulk write into a free slot; the reader works in the
 * slot itself, and gives it back when it has read: then the writer hears, by a
 * credit, that it may use it again. A device has slots of its own because a
 * device does one collective at a time and all members do theirs in one order:
 * so letters that wait to be read can only ever hold up letters that are read
 * later, and nothing deadlocks although memory is bounded.
 *
 * Whoever takes part in an operation opens a box under its name. Letters that
 * come before their box is open wait in their slots. Where an operation must
 * fail (a process was removed or is silent, the run was aborted), its box is
 * told once. */
#ifndef TOW_COLLECTIVE_SPAN_LETTERS_H_
#define TOW_COLLECTIVE_SPAN_LETTERS_H_

#include <stdalign.h>

#include "base/list.h"
#include "collective/span/span.h"
#include "collective/span/tuning.h"

typedef struct tow_letters tow_letters_t;
typedef struct tow_letter tow_letter_t;
typedef struct tow_envelope tow_envelope_t;
typedef struct tow_box tow_box_t;
typedef struct tow_letters_peer tow_letters_peer_t;

/* One member's part in one operation: the same in all processes but for `to`. */
typedef struct tow_box_name {
    uint64_t members; /* hash of their ids, in rank order */
    uint64_t run_id;
    uint64_t op_id;
    uint64_t occurrence;
    int64_t to; /* the device that reads */
} tow_box_name_t;

/* How a letter begins, on the wire too: both ends are little-endian. */
typedef struct tow_letter_head {
    tow_box_name_t box;
    int64_t from; /* the device that wrote */
    uint64_t step;
    uint32_t size; /* of what follows */
    uint32_t kind; /* set by the letters */
} tow_letter_head_t;

_Static_assert(sizeof(tow_letter_head_t) == 64, "part of the protocol");

#define TOW_LETTER_BYTES_MAX \
    ((size_t)TOW_SPAN_SLOT_BYTES - sizeof(tow_letter_head_t))

/* One that has arrived. Belongs to the letters; lent from `arrived` until it is
 * released. */
struct tow_letter {
    tow_list_t list; /* the holder's */
    const tow_letter_head_t *head;
    uint8_t *bytes; /* the reader may scribble in them */
    tow_letters_peer_t *peer;
    uint32_t slot;
    bool is_held; /* it is in its slot, unread */
};

/* One to be sent. Owned by whoever made it, lent from the sending until
 * `returned`. */
struct tow_envelope {
    tow_list_t list;    /* the holder's */
    uint32_t process;   /* where it goes */
    tow_write_t write_; /* belongs to the letters */
    tow_letters_peer_t *peer_;
    tow_box_t *box; /* whose it is; NULL when that is closed */
    /* It is at its target, or never will be; then its box has failed. Not inside
     * tow_letters_send. */
    void (*returned)(tow_envelope_t *envelope);
    void *context; /* the owner's */
    void *tally;   /* the owner's, too */
    alignas(64) tow_letter_head_t head;
    uint8_t bytes[]; /* head.size of them */
};

/* Neither may open or close a box. */
typedef struct tow_box_handler {
    /* Runs also inside tow_letters_open_box. */
    void (*arrived)(tow_box_t *box, tow_letter_t *letter);
    /* Once; then no letter arrives any more. `cause` is lent. */
    void (*failed)(tow_box_t *box, tow_status_t cause);
} tow_box_handler_t;

/* Owned by the caller, open until tow_letters_close_box. */
struct tow_box {
    tow_list_t list_; /* belongs to the letters */
    tow_box_name_t name;
    const tow_box_handler_t *handler; /* lent */
    /* All processes of the operation but our own, lent while open. */
    const uint32_t *processes;
    size_t process_count;
    /* Of them, those that we exchange letters with come first: their silence
     * counts. */
    size_t partner_count;
    int64_t opened_ns; /* set by open */
    bool is_failed;
};

typedef struct tow_letters_options {
    tow_env_t *env;
    uint32_t process_id;
    uint32_t device_count;
    uint64_t host_id;
    int64_t patience_ns; /* 0: the default */
    tow_write_check_t check;
    /* Another process has aborted a run. */
    void (*aborted)(void *context, uint64_t run_id, tow_code_t code,
                    const char *reason);
    /* As in tow_span_options_t. */
    void (*peer_failed)(void *context, uint32_t process_id, tow_status_t cause);
    void *context; /* lent */
} tow_letters_options_t;

tow_status_t tow_letters_open(const tow_letters_options_t *options,
                              tow_letters_t **out_letters) TOW_MUST_USE;
/* All boxes must be closed and all letters released. What was sent still goes,
 * for at most TOW_SPAN_LINGER_NS; then the letters are freed and `closed` runs. */
void tow_letters_close(tow_letters_t *letters, tow_closed_t closed);

/* Frees at once what belongs to a process that is dead: the env must not be
 * called any more, nor by `returned`. For the simulator, where a process ends
 * and the world goes on. */
void tow_letters_destroy(tow_letters_t *letters);

tow_span_peer_t tow_letters_self(const tow_letters_t *letters);
tow_status_t tow_letters_add_peer(tow_letters_t *letters,
                                  const tow_span_peer_t *peer) TOW_MUST_USE;
void tow_letters_remove_peer(tow_letters_t *letters, uint32_t process_id,
                             tow_status_t cause);

/* Fails, and the box is not open, when it is known already that the operation
 * must fail. Costs a look at each letter that waits for its box. */
tow_status_t tow_letters_open_box(tow_letters_t *letters, tow_box_t *box)
    TOW_MUST_USE;
/* Envelopes that wait come back now if the box has failed; else they still go,
 * and come back when they have. */
void tow_letters_close_box(tow_letters_t *letters, tow_box_t *box);

/* Sends a letter of this box, which is open. The sender fills in head.size,
 * head.step, head.box.to, head.from, process and bytes. */
void tow_letters_send(tow_letters_t *letters, tow_box_t *box,
                      tow_envelope_t *envelope);
/* It has been read. Also after its peer has gone. */
void tow_letters_release(tow_letter_t *letter);

/* Fails the boxes of this run, now and later, and tells our peers. */
void tow_letters_abort(tow_letters_t *letters, uint64_t run_id, tow_code_t code,
                       const char *reason);
/* The abort of this run, if there is one. */
tow_status_t tow_letters_abort_of(const tow_letters_t *letters, uint64_t run_id)
    TOW_MUST_USE;

/* What is kept, for tests and reports. */
typedef struct tow_letters_stats {
    size_t peer_count;     /* retired ones included */
    size_t unread_count;   /* letters in slots */
    size_t envelope_count; /* lent to us */
    uint64_t sent_count;
    uint64_t arrived_count;
    uint64_t dropped_count; /* of aborted runs, or of processes that are gone */
} tow_letters_stats_t;

tow_letters_stats_t tow_letters_stats(const tow_letters_t *letters);

#endif /* TOW_COLLECTIVE_SPAN_LETTERS_H_ */
