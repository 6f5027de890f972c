/* Both ends of TLS in one process. Some tests use a bare OpenSSL end that
 * behaves in ways that ours never does. */
#include "wire/tls_testing_impl.h"

#include <openssl/ssl.h>
#include <stdlib.h>

#include "wire/tls_impl.h"
#include "wire/tuning.h"

typedef struct ends {
    tow_tls_context_t *shows;
    tow_tls_context_t *trusts;
    tow_tls_t *dialler;
    tow_tls_t *listener;
} ends_t;

/* A listener with the certificate `shown`, a dialler that trusts `trusted`
 * and dialled `host`. */
static ends_t make_ends(const char *shown, const char *trusted,
                        const char *host)
{
    ends_t ends = {.shows = context_that_shows(shown),
                   .trusts = context_that_trusts(trusted)};
    assert_null(
        tow_tls_create(ends.trusts, TOW_SIDE_DIALLER, host, &ends.dialler));
    assert_null(
        tow_tls_create(ends.shows, TOW_SIDE_LISTENER, NULL, &ends.listener));
    return ends;
}

static void forget_ends(ends_t *ends)
{
    tow_tls_destroy(ends->dialler);
    tow_tls_destroy(ends->listener);
    tow_tls_context_destroy(ends->shows);
    tow_tls_context_destroy(ends->trusts);
}

/* Moves pending bytes from one end to the other, `piece` at a time. */
static bool carry(tow_tls_t *from, tow_tls_t *to, size_t piece)
{
    uint8_t bytes[4096];
    size_t waited = tow_tls_drain_pending(from), carried = 0, count;
    assert_true(piece <= sizeof(bytes));
    while ((count = tow_tls_drain(from, bytes, piece)) > 0) {
        assert_null(tow_tls_feed(to, bytes, count));
        carried += count;
    }
    assert_int_equal(carried, waited);
    return carried > 0;
}

/* Runs both handshakes until both are done or one fails. */
static void shake(ends_t *ends, size_t piece, tow_status_t *out_dialler,
                  tow_status_t *out_listener)
{
    bool dialler_done = false, listener_done = false;
    *out_dialler = *out_listener = TOW_OK;
    for (int turn = 0; turn < 100; turn++) {
        if (*out_dialler == TOW_OK && !dialler_done)
            *out_dialler = tow_tls_handshake(ends->dialler, &dialler_done);
        carry(ends->dialler, ends->listener, piece);
        if (*out_listener == TOW_OK && !listener_done)
            *out_listener = tow_tls_handshake(ends->listener, &listener_done);
        carry(ends->listener, ends->dialler, piece);
        if (dialler_done && listener_done) return;
    }
    assert_true(*out_dialler != TOW_OK || *out_listener != TOW_OK);
}

static ends_t make_connected_ends(size_t piece)
{
    make_certificate("a", "localhost");
    ends_t ends = make_ends("a", "a", "localhost");
    tow_status_t dialler, listener;
    shake(&ends, piece, &dialler, &listener);
    assert_null(dialler);
    assert_null(listener);
    return ends;
}

static void expect_plain(tow_tls_t *tls, const char *text)
{
    char bytes[256];
    size_t count;
    bool closed;
    assert_null(tow_tls_read(tls, bytes, sizeof(bytes), &count, &closed));
    assert_false(closed);
    assert_int_equal(count, strlen(text));
    assert_memory_equal(bytes, text, count);
}

static void ends_talk_both_ways_however_bytes_are_cut(void **state)
{
    ends_t ends = make_connected_ends(1);
    expect_plain(ends.listener, "");
    assert_null(tow_tls_write(ends.dialler, "ping", 4));
    carry(ends.dialler, ends.listener, 1);
    expect_plain(ends.listener, "ping");
    assert_null(tow_tls_write(ends.listener, "pong", 4));
    assert_true(tow_tls_drain_pending(ends.listener) > 4);
    carry(ends.listener, ends.dialler, 4096);
    expect_plain(ends.dialler, "pong");
    expect_plain(ends.dialler, "");
    forget_ends(&ends);
}

static void large_writes_arrive_whole(void **state)
{
    enum {
        SIZE = 1 << 20
    };
    ends_t ends = make_connected_ends(4096);
    uint8_t *sent = malloc(SIZE), *got = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        sent[i] = (uint8_t)(i * 31 >> 3);
    assert_null(tow_tls_write(ends.dialler, sent, SIZE));
    carry(ends.dialler, ends.listener, 4096);
    size_t total = 0, count;
    bool closed;
    do {
        assert_null(tow_tls_read(ends.listener, got + total, SIZE - total,
                                 &count, &closed));
        total += count;
    } while (count > 0);
    assert_int_equal(total, SIZE);
    assert_memory_equal(sent, got, SIZE);
    free(sent);
    free(got);
    forget_ends(&ends);
}

static void shutdown_is_seen_as_an_end_in_order(void **state)
{
    ends_t ends = make_connected_ends(4096);
    assert_null(tow_tls_write(ends.dialler, "bye", 3));
    tow_tls_shutdown(ends.dialler);
    carry(ends.dialler, ends.listener, 4096);
    expect_plain(ends.listener, "bye");
    uint8_t bytes[8];
    size_t count;
    bool closed;
    assert_null(
        tow_tls_read(ends.listener, bytes, sizeof(bytes), &count, &closed));
    assert_true(closed);
    assert_int_equal(count, 0);
    forget_ends(&ends);
}

static void binding_is_one_value_of_one_connection(void **state)
{
    uint8_t dialler[TOW_TLS_BINDING_SIZE], listener[TOW_TLS_BINDING_SIZE];
    uint8_t other[TOW_TLS_BINDING_SIZE];
    ends_t ends = make_connected_ends(4096);
    assert_null(tow_tls_binding(ends.dialler, dialler));
    assert_null(tow_tls_binding(ends.listener, listener));
    assert_memory_equal(dialler, listener, sizeof(dialler));
    ends_t second = make_ends("a", "a", "localhost");
    tow_status_t error;
    shake(&second, 4096, &error, &error);
    assert_null(tow_tls_binding(second.dialler, other));
    assert_memory_not_equal(dialler, other, sizeof(dialler));
    forget_ends(&second);
    forget_ends(&ends);
}

static void certificates_for_addresses_are_trusted(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    for (size_t i = 0; i < TOW_COUNT_OF(hosts); i++) {
        char name[8];
        snprintf(name, sizeof(name), "c%zu", i);
        make_certificate(name, hosts[i]);
        ends_t ends = make_ends(name, name, hosts[i]);
        tow_status_t dialler, listener;
        shake(&ends, 4096, &dialler, &listener);
        assert_null(dialler);
        assert_null(listener);
        forget_ends(&ends);
    }
}

static void expect_distrust(const char *shown, const char *trusted,
                            const char *host, const char *words)
{
    ends_t ends = make_ends(shown, trusted, host);
    tow_status_t dialler, listener;
    shake(&ends, 4096, &dialler, &listener);
    expect_error(dialler, TOW_UNAUTHENTICATED, words);
    /* The listener gets an alert. */
    expect_error(listener, TOW_PERMISSION_DENIED, "our certificate");
    forget_ends(&ends);
}

static void certificate_of_a_stranger_is_not_trusted(void **state)
{
    make_certificate("a", "localhost");
    make_certificate("b", "localhost");
    expect_distrust("a", "b", "localhost", "self-signed certificate");
}

static void certificate_for_another_host_is_not_trusted(void **state)
{
    make_certificate("a", "localhost");
    make_certificate("four", "127.0.0.1");
    expect_distrust("a", "a", "example.org", "hostname mismatch");
    expect_distrust("a", "a", "sub.localhost", "hostname mismatch");
    expect_distrust("a", "a", "127.0.0.1", "IP address mismatch");
    expect_distrust("four", "four", "127.0.0.2", "IP address mismatch");
    expect_distrust("four", "four", "localhost", "hostname mismatch");
}

/* -- Other versions and protocols ------------------------------------------ */

/* A bare OpenSSL end that speaks TLS 1.2 at most; `half` is one of its
 * sides. */
static SSL *make_old_end(SSL_CTX *context)
{
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    SSL *ssl = SSL_new(context);
    assert_non_null(ssl);
    BIO *from = BIO_new(BIO_s_mem()), *to = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(from, -1);
    BIO_set_mem_eof_return(to, -1);
    SSL_set_bio(ssl, from, to);
    return ssl;
}

static tow_status_t shake_with_old_end(SSL *old, tow_tls_t *tls)
{
    tow_status_t status = TOW_OK;
    bool done = false;
    for (int turn = 0; turn < 10 && status == TOW_OK && !done; turn++) {
        uint8_t bytes[4096];
        SSL_do_handshake(old);
        int count;
        while ((count = BIO_read(SSL_get_wbio(old), bytes, sizeof(bytes))) > 0)
            assert_null(tow_tls_feed(tls, bytes, (size_t)count));
        status = tow_tls_handshake(tls, &done);
        size_t drained;
        while ((drained = tow_tls_drain(tls, bytes, sizeof(bytes))) > 0)
            BIO_write(SSL_get_rbio(old), bytes, (int)drained);
    }
    assert_false(done);
    return status;
}

static void older_tls_is_refused_on_both_sides(void **state)
{
    make_certificate("a", "localhost");
    ends_t ends = make_ends("a", "a", "localhost");
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *old = make_old_end(context);
    SSL_set_connect_state(old);
    expect_error(shake_with_old_end(old, ends.listener),
                 TOW_FAILED_PRECONDITION, "cannot speak TLS 1.3");
    SSL_free(old);
    SSL_CTX_free(context);

    context = SSL_CTX_new(TLS_server_method());
    assert_int_equal(SSL_CTX_use_certificate_file(context, in_folder("a.cert"),
                                                  SSL_FILETYPE_PEM),
                     1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(context, in_folder("a.key"),
                                                 SSL_FILETYPE_PEM),
                     1);
    old = make_old_end(context);
    SSL_set_accept_state(old);
    expect_error(shake_with_old_end(old, ends.dialler), TOW_FAILED_PRECONDITION,
                 "cannot speak TLS 1.3");
    SSL_free(old);
    SSL_CTX_free(context);
    forget_ends(&ends);
}

static void expect_stranger(const char *bytes, size_t count, const char *words)
{
    ends_t ends = make_ends("a", "a", "localhost");
    bool done;
    assert_null(tow_tls_feed(ends.listener, bytes, count));
    expect_error(tow_tls_handshake(ends.listener, &done), TOW_INVALID_ARGUMENT,
                 words);
    forget_ends(&ends);
}

static void peers_that_do_not_speak_tls_are_named(void **state)
{
    make_certificate("a", "localhost");
    expect_stranger("TOWPATH\x01 and more bytes", 24,
                    "the peer does not speak TLS");
    expect_stranger("GET / HTTP/1.1\r\n\r\n", 18, "plain HTTP");
}

/* -- Corruption ------------------------------------------------------------ */

static void every_damaged_byte_of_a_record_is_found(void **state)
{
    make_certificate("a", "localhost");
    size_t record_size = 1;
    for (size_t at = 0; at < record_size; at++) {
        ends_t ends = make_ends("a", "a", "localhost");
        tow_status_t dialler, listener;
        shake(&ends, 4096, &dialler, &listener);
        assert_null(tow_tls_write(ends.dialler, "hello", 5));
        uint8_t bytes[256];
        record_size = tow_tls_drain(ends.dialler, bytes, sizeof(bytes));
        bytes[at] ^= 1;
        assert_null(tow_tls_feed(ends.listener, bytes, record_size));
        size_t count;
        bool closed;
        tow_status_t status =
            tow_tls_read(ends.listener, bytes, sizeof(bytes), &count, &closed);
        /* A corrupt length may require more bytes, but no wrong bytes come
         * out. */
        assert_int_equal(count, 0);
        assert_true(status != TOW_OK || at == 3 || at == 4);
        tow_status_release(status);
        forget_ends(&ends);
    }
    assert_true(record_size > 20);
}

static void what_is_fed_without_reading_is_bounded(void **state)
{
    ends_t ends = make_connected_ends(4096);
    enum {
        PIECE = 1 << 20
    };
    uint8_t *bytes = calloc(1, PIECE);
    size_t fed = 0;
    while (fed + PIECE <= TOW_TLS_FEED_BYTES_MAX) {
        assert_null(tow_tls_feed(ends.listener, bytes, PIECE));
        fed += PIECE;
    }
    expect_error(tow_tls_feed(ends.listener, bytes, 1), TOW_RESOURCE_EXHAUSTED,
                 "wait to be read");
    free(bytes);
    forget_ends(&ends);
}

static tow_exhaust_result_t create_with_little_memory(void *context)
{
    tow_tls_t *tls;
    tow_status_t status =
        tow_tls_create(context, TOW_SIDE_LISTENER, NULL, &tls);
    bool refused = status != TOW_OK;
    assert_true(refused == (tls == NULL));
    tow_status_release(status);
    tow_tls_destroy(tls);
    return refused ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void refused_memory_is_reported_and_nothing_leaks(void **state)
{
    make_certificate("a", "localhost");
    tow_tls_context_t *context = context_that_shows("a");
    assert_true(tow_test_exhaust(create_with_little_memory, context) >= 1);
    tow_tls_context_destroy(context);
}

static void side_without_its_certificates_is_refused(void **state)
{
    make_certificate("a", "localhost");
    tow_tls_context_t *shows = context_that_shows("a");
    tow_tls_context_t *trusts = context_that_trusts("a");
    tow_tls_t *tls;
    expect_error(tow_tls_create(shows, TOW_SIDE_DIALLER, "localhost", &tls),
                 TOW_FAILED_PRECONDITION, "no certificate to trust");
    expect_error(tow_tls_create(trusts, TOW_SIDE_LISTENER, NULL, &tls),
                 TOW_FAILED_PRECONDITION, "no certificate to show");
    tow_tls_context_destroy(shows);
    tow_tls_context_destroy(trusts);
}

#define IN_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

TOW_TEST_MAIN(IN_FOLDER(ends_talk_both_ways_however_bytes_are_cut),
              IN_FOLDER(large_writes_arrive_whole),
              IN_FOLDER(shutdown_is_seen_as_an_end_in_order),
              IN_FOLDER(binding_is_one_value_of_one_connection),
              IN_FOLDER(certificates_for_addresses_are_trusted),
              IN_FOLDER(certificate_of_a_stranger_is_not_trusted),
              IN_FOLDER(certificate_for_another_host_is_not_trusted),
              IN_FOLDER(older_tls_is_refused_on_both_sides),
              IN_FOLDER(peers_that_do_not_speak_tls_are_named),
              IN_FOLDER(every_damaged_byte_of_a_record_is_found),
              IN_FOLDER(what_is_fed_without_reading_is_bounded),
              IN_FOLDER(refused_memory_is_reported_and_nothing_leaks),
              IN_FOLDER(side_without_its_certificates_is_refused))
