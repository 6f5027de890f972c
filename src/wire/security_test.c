#include "wire/folder_testing_impl.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "wire/security.h"

static void expect(tow_status_t status, tow_code_t code, const char *words)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("no '%s' in: %s", words, tow_status_message(status));
    tow_status_release(status);
}

static void write_token(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

#define DIGITS_62 \
    "00112233445566778899aabbccddeeffFFEEDDCCBBAA998877665544332211"

static void created_token_loads_and_is_new_each_time(void **state)
{
    tow_token_t made, other, loaded;
    assert_null(tow_token_create(in_folder("a"), &made));
    assert_null(tow_token_create(in_folder("b"), &other));
    assert_null(tow_token_load(in_folder("a"), &loaded));
    assert_memory_equal(&made, &loaded, sizeof(made));
    assert_memory_not_equal(&made, &other, sizeof(made));
    struct stat facts;
    assert_int_equal(stat(in_folder("a"), &facts), 0);
    assert_int_equal(facts.st_mode & 07777, 0600);
    assert_int_equal(facts.st_size, 65);
}

static void existing_token_is_never_overwritten(void **state)
{
    tow_token_t first, second, loaded;
    assert_null(tow_token_create(in_folder("a"), &first));
    expect(tow_token_create(in_folder("a"), &second), TOW_ALREADY_EXISTS,
           "already exists");
    assert_null(tow_token_load(in_folder("a"), &loaded));
    assert_memory_equal(&first, &loaded, sizeof(first));
}

static void hexadecimal_of_either_case_and_line_end_is_taken(void **state)
{
    static const char *const texts[] = {DIGITS_62 "00", DIGITS_62 "00\n",
                                        DIGITS_62 "00\r\n"};
    tow_token_t token;
    for (size_t i = 0; i < TOW_COUNT_OF(texts); i++) {
        write_token(in_folder("t"), texts[i], 0600);
        assert_null(tow_token_load(in_folder("t"), &token));
        assert_int_equal(token.bytes[1], 0x11);
        assert_int_equal(token.bytes[16], 0xff);
        assert_int_equal(token.bytes[17], 0xee);
    }
}

static void wrong_tokens_are_refused_and_never_shown(void **state)
{
    static const struct {
        const char *text;
        const char *words;
    } table[] = {
        {"", "has 0 hexadecimal digits"},
        {"\n", "has 0 hexadecimal digits"},
        {DIGITS_62, "has 62 hexadecimal digits"},
        {DIGITS_62 "0", "has 63 hexadecimal digits"},
        {DIGITS_62 "000", "has 65 hexadecimal digits"},
        {DIGITS_62 "0g", "byte 64 is no hexadecimal digit"},
        {DIGITS_62 " 0", "byte 63 is no hexadecimal digit"},
        {" " DIGITS_62 "00", "byte 1 is no hexadecimal digit"},
        {DIGITS_62 "00\n\n\n", "larger than"},
        {"0x" DIGITS_62, "byte 2 is no hexadecimal digit"},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(table); i++) {
        tow_token_t token;
        write_token(in_folder("t"), table[i].text, 0600);
        tow_status_t status = tow_token_load(in_folder("t"), &token);
        assert_null(strstr(tow_status_message(status), "00112233"));
        assert_non_null(strstr(tow_status_message(status), in_folder("t")));
        expect(status, TOW_INVALID_ARGUMENT, table[i].words);
        static const tow_token_t none;
        assert_memory_equal(&token, &none, sizeof(none));
    }
}

static void token_open_to_others_is_refused_with_the_remedy(void **state)
{
    tow_token_t token;
    char remedy[512];
    write_token(in_folder("t"), DIGITS_62 "00\n", 0640);
    snprintf(remedy, sizeof(remedy), "(mode 0640); run: chmod 600 %s/t",
             folder_path);
    expect(tow_token_load(in_folder("t"), &token), TOW_PERMISSION_DENIED,
           remedy);
}

/* -- Where we may listen and dial ------------------------------------------ */

typedef struct cluster {
    tow_security_t nothing;
    tow_security_t token_only;
    tow_security_t tls_only;
    tow_security_t listener; /* token, certificate */
    tow_security_t dialler;  /* token, authority */
} cluster_t;

static void make_cluster(cluster_t *cluster)
{
    tow_tls_context_t *listener, *dialler;
    assert_null(tow_tls_make_self_signed(in_folder("cert.pem"),
                                         in_folder("key.pem"), "localhost"));
    const tow_tls_options_t shows = {.certificate_path = in_folder("cert.pem"),
                                     .key_path = in_folder("key.pem")};
    assert_null(tow_tls_context_create(&shows, &listener));
    const tow_tls_options_t trusts = {.authority_path = in_folder("cert.pem")};
    assert_null(tow_tls_context_create(&trusts, &dialler));
    *cluster = (cluster_t){
        .token_only = {.has_token = true},
        .tls_only = {.tls = listener},
        .listener = {.has_token = true, .tls = listener},
        .dialler = {.has_token = true, .tls = dialler},
    };
}

static void forget_cluster(cluster_t *cluster)
{
    tow_tls_context_destroy(cluster->listener.tls);
    tow_tls_context_destroy(cluster->dialler.tls);
}

static tow_status_t may_listen(const tow_security_t *security, const char *text)
{
    tow_address_t address;
    TOW_RETURN_IF_ERROR(tow_address_parse(text, &address));
    return tow_security_check_listen(security, &address);
}

static tow_status_t may_dial(const tow_security_t *security, const char *text)
{
    tow_address_t address;
    TOW_RETURN_IF_ERROR(tow_address_parse(text, &address));
    return tow_security_check_dial(security, &address);
}

static const char *const local_addresses[] = {"unix:/run/x", "tcp:127.0.0.1:1",
                                              "tcp:localhost:1", "tcp:[::1]:1"};
static const char *const distant_addresses[] = {
    "tcp:0.0.0.0:1", "tcp:10.0.0.1:1", "tcp:[::]:1", "tcp:example.org:1"};

static void this_host_needs_a_token(void **state)
{
    cluster_t cluster;
    make_cluster(&cluster);
    for (size_t i = 0; i < TOW_COUNT_OF(local_addresses); i++) {
        const char *address = local_addresses[i];
        assert_null(may_listen(&cluster.token_only, address));
        assert_null(may_dial(&cluster.token_only, address));
        expect(may_listen(&cluster.nothing, address), TOW_FAILED_PRECONDITION,
               "without a token");
        expect(may_dial(&cluster.nothing, address), TOW_FAILED_PRECONDITION,
               "tow keys FOLDER");
        expect(may_listen(&cluster.tls_only, address), TOW_FAILED_PRECONDITION,
               "without a token");
    }
    forget_cluster(&cluster);
}

static void beyond_this_host_plain_tcp_is_refused(void **state)
{
    cluster_t cluster;
    make_cluster(&cluster);
    for (size_t i = 0; i < TOW_COUNT_OF(distant_addresses); i++) {
        const char *address = distant_addresses[i];
        expect(may_listen(&cluster.listener, address), TOW_FAILED_PRECONDITION,
               "use tls:HOST:PORT");
        expect(may_dial(&cluster.dialler, address), TOW_FAILED_PRECONDITION,
               "use tls:HOST:PORT");
        expect(may_listen(&cluster.nothing, address), TOW_FAILED_PRECONDITION,
               "without a token");
    }
    forget_cluster(&cluster);
}

static void tls_needs_a_token_and_the_certificates_of_its_side(void **state)
{
    cluster_t cluster;
    make_cluster(&cluster);
    assert_null(may_listen(&cluster.listener, "tls:0.0.0.0:0"));
    assert_null(may_dial(&cluster.dialler, "tls:example.org:1"));
    expect(may_listen(&cluster.tls_only, "tls:0.0.0.0:1"),
           TOW_FAILED_PRECONDITION, "without a token");
    expect(may_listen(&cluster.token_only, "tls:127.0.0.1:1"),
           TOW_FAILED_PRECONDITION, "tow keys FOLDER --host 127.0.0.1");
    expect(may_listen(&cluster.dialler, "tls:127.0.0.1:1"),
           TOW_FAILED_PRECONDITION, "without a certificate and its key");
    expect(may_dial(&cluster.token_only, "tls:127.0.0.1:1"),
           TOW_FAILED_PRECONDITION, "has no TLS");
    /* The token authenticates the listener. */
    assert_null(may_dial(&cluster.listener, "tls:127.0.0.1:1"));
    forget_cluster(&cluster);
}

static void port_zero_is_not_dialled_and_the_simulator_needs_nothing(
    void **state)
{
    const tow_security_t token = {.has_token = true}, nothing = {0};
    expect(may_dial(&token, "tcp:127.0.0.1:0"), TOW_INVALID_ARGUMENT, "port 0");
    assert_null(may_listen(&token, "tcp:127.0.0.1:0"));
    assert_null(may_dial(&nothing, "sim:a"));
    assert_null(may_listen(&nothing, "sim:a"));
}

#define IN_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

TOW_TEST_MAIN(
    IN_FOLDER(created_token_loads_and_is_new_each_time),
    IN_FOLDER(existing_token_is_never_overwritten),
    IN_FOLDER(hexadecimal_of_either_case_and_line_end_is_taken),
    IN_FOLDER(wrong_tokens_are_refused_and_never_shown),
    IN_FOLDER(token_open_to_others_is_refused_with_the_remedy),
    IN_FOLDER(this_host_needs_a_token),
    IN_FOLDER(beyond_this_host_plain_tcp_is_refused),
    IN_FOLDER(tls_needs_a_token_and_the_certificates_of_its_side),
    cmocka_unit_test(port_zero_is_not_dialled_and_the_simulator_needs_nothing))
