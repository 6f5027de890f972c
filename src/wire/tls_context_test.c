#include "wire/tls_testing_impl.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include "wire/tls_impl.h"

static tow_status_t create(const char *certificate, const char *key,
                           const char *authority)
{
    const tow_tls_options_t options = {
        .certificate_path = certificate != NULL ? in_folder(certificate) : NULL,
        .key_path = key != NULL ? in_folder(key) : NULL,
        .authority_path = authority != NULL ? in_folder(authority) : NULL,
    };
    tow_tls_context_t *context;
    tow_status_t status = tow_tls_context_create(&options, &context);
    assert_true((status == TOW_OK) == (context != NULL));
    tow_tls_context_destroy(context);
    return status;
}

static void write_file(const char *name, const char *text)
{
    int fd = open(in_folder(name), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void context_has_the_sides_that_its_files_allow(void **state)
{
    make_certificate("a", "localhost");
    tow_tls_context_t *context = context_that_shows("a");
    assert_true(tow_tls_context_can_listen(context));
    assert_false(tow_tls_context_checks_names(context));
    tow_tls_context_destroy(context);
    context = context_that_trusts("a");
    assert_false(tow_tls_context_can_listen(context));
    assert_true(tow_tls_context_checks_names(context));
    tow_tls_context_destroy(context);
    assert_null(create("a.cert", "a.key", "a.cert"));
}

static void incomplete_options_are_refused(void **state)
{
    make_certificate("a", "localhost");
    expect_error(create("a.cert", NULL, NULL), TOW_INVALID_ARGUMENT,
                 "the key is missing");
    expect_error(create(NULL, "a.key", "a.cert"), TOW_INVALID_ARGUMENT,
                 "the certificate is missing");
}

static void context_without_files_dials_and_may_make_a_certificate(void **state)
{
    tow_tls_options_t options = {0};
    tow_tls_context_t *context;
    assert_null(tow_tls_context_create(&options, &context));
    assert_false(tow_tls_context_can_listen(context));
    assert_false(tow_tls_context_checks_names(context));
    tow_tls_context_destroy(context);
    options.makes_certificate = true;
    assert_null(tow_tls_context_create(&options, &context));
    assert_true(tow_tls_context_can_listen(context));
    tow_tls_context_destroy(context);
}

static void wrong_files_are_named(void **state)
{
    make_certificate("a", "localhost");
    make_certificate("b", "localhost");
    write_file("empty", "");
    write_file("noise", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    expect_error(create("absent", "a.key", NULL), TOW_NOT_FOUND, "absent");
    expect_error(create("a.cert", "absent", NULL), TOW_NOT_FOUND, "absent");
    expect_error(create(NULL, NULL, "absent"), TOW_NOT_FOUND, "absent");
    expect_error(create("empty", "a.key", NULL), TOW_INVALID_ARGUMENT,
                 "no certificate in it");
    expect_error(create(NULL, NULL, "noise"), TOW_INVALID_ARGUMENT,
                 "no certificate in it");
    expect_error(create("a.cert", "empty", NULL), TOW_INVALID_ARGUMENT,
                 "no private key in it");
    expect_error(create("a.key", "a.key", NULL), TOW_INVALID_ARGUMENT,
                 "no certificate in it");
    expect_error(create("a.cert", "b.key", NULL), TOW_INVALID_ARGUMENT,
                 "does not belong to certificate");
}

static void key_open_to_others_is_refused_with_the_remedy(void **state)
{
    make_certificate("a", "localhost");
    assert_int_equal(chmod(in_folder("a.key"), 0644), 0);
    expect_error(create("a.cert", "a.key", NULL), TOW_PERMISSION_DENIED,
                 "run: chmod 600 ");
}

static void key_with_a_password_is_refused_without_asking(void **state)
{
    make_certificate("a", "localhost");
    EVP_PKEY *key = EVP_EC_gen("P-256");
    BIO *file = BIO_new_file(in_folder("locked.key"), "w");
    assert_true(key != NULL && file != NULL);
    assert_int_equal(PEM_write_bio_PKCS8PrivateKey(file, key, EVP_aes_128_cbc(),
                                                   "secret", 6, NULL, NULL),
                     1);
    BIO_free(file);
    EVP_PKEY_free(key);
    assert_int_equal(chmod(in_folder("locked.key"), 0600), 0);
    expect_error(create("a.cert", "locked.key", NULL), TOW_INVALID_ARGUMENT,
                 "without a password");
}

static tow_exhaust_result_t create_with_little_memory(void *context)
{
    tow_status_t status = create("a.cert", "a.key", "a.cert");
    bool refused = status != TOW_OK;
    if (refused)
        assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    tow_status_release(status);
    return refused ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void refused_memory_is_reported_and_nothing_leaks(void **state)
{
    make_certificate("a", "localhost");
    assert_true(tow_test_exhaust(create_with_little_memory, NULL) >= 4);
}

#define IN_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

TOW_TEST_MAIN(IN_FOLDER(context_has_the_sides_that_its_files_allow),
              IN_FOLDER(incomplete_options_are_refused),
              IN_FOLDER(context_without_files_dials_and_may_make_a_certificate),
              IN_FOLDER(wrong_files_are_named),
              IN_FOLDER(key_open_to_others_is_refused_with_the_remedy),
              IN_FOLDER(key_with_a_password_is_refused_without_asking),
              IN_FOLDER(refused_memory_is_reported_and_nothing_leaks))
