/* Letters: keyed messages between processes, each delivered exactly once, or
 * failed with an error that names the process. A state machine over tow_env;
 * all functions run on its loop.
 *
 * A process has a region for each peer, with slots for each of the peer's
 * devices (a receive queue per sender). A letter is one bulk write into a free
 * slot. The reader processes it in place and releases the slot, and a credit
 * tells the writer that the slot is free again. Slots are per device because a
 * device runs one collective at a time and all members run theirs in one order:
 * unread letters can only delay letters that are read later, so bounded memory
 * causes no deadlock.
 *
 * A member of an operation opens a box under the operation's name (posts a
 * receive). Letters that arrive before their box is open wait in their slots.
 * When an operation must fail (a process was removed or timed out, the run was
 * aborted), its box is notified once. */
#ifndef TOW_COLLECTIVE_MULTI_HOST_LETTERS_H_
#define TOW_COLLECTIVE_MULTI_HOST_LETTERS_H_

#include <stdalign.h>

#include "base/list.h"
#include "collective/multi_host/multi_host.h"
#include "collective/multi_host/tuning.h"

typedef struct tow_letters tow_letters_t;
typedef struct tow_letter tow_letter_t;
typedef struct tow_envelope tow_envelope_t;
typedef struct tow_box tow_box_t;
typedef struct tow_letters_peer tow_letters_peer_t;

/* The key of one member's part in one operation: the same in all processes
 * except for `to`. */
typedef struct tow_box_name {
    uint64_t members; /* hash of their ids, in rank order */
    uint64_t run_id;
    uint64_t op_id;
    uint64_t occurrence;
    int64_t to; /* the device that reads */
} tow_box_name_t;

/* The header of a letter, also on the wire: both ends are little-endian. */
typedef struct tow_letter_head {
    tow_box_name_t box;
    int64_t from; /* the device that wrote */
    uint64_t step;
    uint32_t size; /* of what follows */
    uint32_t kind; /* set by the letters */
} tow_letter_head_t;

_Static_assert(sizeof(tow_letter_head_t) == 64, "part of the protocol");

#define TOW_LETTER_BYTES_MAX \
    ((size_t)TOW_MULTI_HOST_SLOT_BYTES - sizeof(tow_letter_head_t))

/* A received letter. Owned by tow_letters_t; the box's owner may use it from
 * `arrived` until it releases it. */
struct tow_letter {
    tow_list_t list; /* the holder's */
    const tow_letter_head_t *head;
    uint8_t *bytes; /* the reader may overwrite them */
    tow_letters_peer_t *peer;
    uint32_t slot;
    bool is_held; /* it is in its slot, unread */
};

/* A letter to be sent. Owned by its creator, in use from tow_letters_send until
 * `returned`. */
struct tow_envelope {
    tow_list_t list;    /* the holder's */
    uint32_t process;   /* where it goes */
    tow_write_t write_; /* belongs to the letters */
    tow_letters_peer_t *peer_;
    tow_box_t *box; /* of the sender; NULL once that is closed */
    /* The letter has arrived, or never will; in that case its box has failed.
     * Not called inside tow_letters_send. */
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
    /* Once; no letter arrives afterwards. `cause` is valid during the call. */
    void (*failed)(tow_box_t *box, tow_status_t cause);
} tow_box_handler_t;

/* Owned by the caller, open until tow_letters_close_box. */
struct tow_box {
    tow_list_t list_; /* belongs to the letters */
    tow_box_name_t name;
    const tow_box_handler_t *handler;
    /* All other processes of the operation; valid while the box is open. */
    const uint32_t *processes;
    size_t process_count;
    /* Those that we exchange letters with come first; only these can time out.
     */
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
    /* As in tow_multi_host_options_t. */
    void (*peer_failed)(void *context, uint32_t process_id, tow_status_t cause);
    void *context;
} tow_letters_options_t;

tow_status_t tow_letters_open(const tow_letters_options_t *options,
                              tow_letters_t **out_letters) TOW_MUST_USE;
/* All boxes must be closed and all letters released. Sent envelopes may still
 * arrive, for at most TOW_MULTI_HOST_LINGER_NS; then the object is freed and
 * `closed` runs. */
void tow_letters_close(tow_letters_t *letters, tow_closed_t closed);

/* Frees everything at once, without calling the env; `returned` must not call
 * it either. For the simulator, where a process may die. */
void tow_letters_destroy(tow_letters_t *letters);

tow_multi_host_peer_t tow_letters_self(const tow_letters_t *letters);
tow_status_t tow_letters_add_peer(tow_letters_t *letters,
                                  const tow_multi_host_peer_t *peer)
    TOW_MUST_USE;
void tow_letters_remove_peer(tow_letters_t *letters, uint32_t process_id,
                             tow_status_t cause);

/* Fails, and does not open the box, if the operation must fail already.
 * Searches all letters that wait for a box. */
tow_status_t tow_letters_open_box(tow_letters_t *letters, tow_box_t *box)
    TOW_MUST_USE;
/* Queued envelopes are returned now if the box has failed; otherwise they are
 * still sent, and returned afterwards. */
void tow_letters_close_box(tow_letters_t *letters, tow_box_t *box);

/* Sends a letter of this box, which is open. The sender fills in head.size,
 * head.step, head.box.to, head.from, process and bytes. */
void tow_letters_send(tow_letters_t *letters, tow_box_t *box,
                      tow_envelope_t *envelope);
/* The letter has been read. Also valid after its peer was removed. */
void tow_letters_release(tow_letter_t *letter);

/* Fails all present and future boxes of this run, and notifies our peers. */
void tow_letters_abort(tow_letters_t *letters, uint64_t run_id, tow_code_t code,
                       const char *reason);
/* The error with which this run was aborted, or OK. */
tow_status_t tow_letters_abort_of(const tow_letters_t *letters, uint64_t run_id)
    TOW_MUST_USE;

/* For tests and reports. */
typedef struct tow_letters_stats {
    size_t peer_count;     /* retired ones included */
    size_t unread_count;   /* letters in slots */
    size_t envelope_count; /* in our hands */
    uint64_t sent_count;
    uint64_t arrived_count;
    uint64_t dropped_count; /* of aborted runs, or of removed processes */
} tow_letters_stats_t;

tow_letters_stats_t tow_letters_stats(const tow_letters_t *letters);

#endif /* TOW_COLLECTIVE_MULTI_HOST_LETTERS_H_ */
