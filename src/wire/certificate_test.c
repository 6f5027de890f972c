#include "wire/tls_testing_impl.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

static X509 *load(const char *path)
{
    BIO *source = BIO_new_file(path, "r");
    assert_non_null(source);
    X509 *certificate = PEM_read_bio_X509(source, NULL, NULL, NULL);
    assert_non_null(certificate);
    BIO_free(source);
    return certificate;
}

static void certificate_is_for_its_host_alone(void **state)
{
    make_certificate("name", "host-1.example");
    X509 *certificate = load(in_folder("name.cert"));
    assert_int_equal(X509_check_host(certificate, "host-1.example", 0, 0, NULL),
                     1);
    assert_int_equal(X509_check_host(certificate, "host-2.example", 0, 0, NULL),
                     0);
    assert_int_equal(X509_get_version(certificate), X509_VERSION_3);
    assert_int_equal(X509_check_ca(certificate), 0);
    X509_free(certificate);
}

static void certificate_may_be_for_an_address(void **state)
{
    make_certificate("four", "127.0.0.1");
    make_certificate("six", "::1");
    X509 *four = load(in_folder("four.cert")),
         *six = load(in_folder("six.cert"));
    assert_int_equal(X509_check_ip_asc(four, "127.0.0.1", 0), 1);
    assert_int_equal(X509_check_ip_asc(four, "127.0.0.2", 0), 0);
    assert_int_equal(X509_check_ip_asc(six, "0:0::1", 0), 1);
    X509_free(four);
    X509_free(six);
}

static void certificate_holds_now_and_for_years(void **state)
{
    make_certificate("now", "localhost");
    X509 *certificate = load(in_folder("now.cert"));
    assert_true(X509_cmp_current_time(X509_get0_notBefore(certificate)) < 0);
    int days, seconds;
    assert_int_equal(
        ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(certificate)),
        1);
    assert_true(days > 3000);
    X509_free(certificate);
}

static void key_is_its_owners_alone(void **state)
{
    mode_t before = umask(0);
    make_certificate("mode", "localhost");
    umask(before);
    struct stat facts;
    assert_int_equal(stat(in_folder("mode.key"), &facts), 0);
    assert_int_equal(facts.st_mode & 07777, 0600);
}

static void existing_files_are_kept_and_no_half_is_left(void **state)
{
    make_certificate("old", "localhost");
    expect_error(tow_tls_make_self_signed(in_folder("old.cert"),
                                          in_folder("new.key"), "localhost"),
                 TOW_ALREADY_EXISTS, "old.cert");
    assert_int_not_equal(access(in_folder("new.key"), F_OK), 0);
    expect_error(tow_tls_make_self_signed(in_folder("new.cert"),
                                          in_folder("old.key"), "localhost"),
                 TOW_ALREADY_EXISTS, "old.key");
    assert_int_not_equal(access(in_folder("new.cert"), F_OK), 0);
}

static void host_that_is_none_is_refused(void **state)
{
    static const char *const hosts[] = {
        "",    "a b",   "a,DNS:b", "*.example", "a\nb",
        "1.2", "[::1]", "a:80",    "127.0.1",   ":x"};
    char longer[400] = {0};
    memset(longer, 'a', sizeof(longer) - 1);
    for (size_t i = 0; i < TOW_COUNT_OF(hosts); i++)
        expect_error(
            tow_tls_make_self_signed(in_folder("c"), in_folder("k"), hosts[i]),
            TOW_INVALID_ARGUMENT, "host");
    expect_error(
        tow_tls_make_self_signed(in_folder("c"), in_folder("k"), longer),
        TOW_INVALID_ARGUMENT, "too long");
    assert_int_not_equal(access(in_folder("k"), F_OK), 0);
}

#define IN_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

TOW_TEST_MAIN(IN_FOLDER(certificate_is_for_its_host_alone),
              IN_FOLDER(certificate_may_be_for_an_address),
              IN_FOLDER(certificate_holds_now_and_for_years),
              IN_FOLDER(key_is_its_owners_alone),
              IN_FOLDER(existing_files_are_kept_and_no_half_is_left),
              IN_FOLDER(host_that_is_none_is_refused))
