/* Looks vectors up and waits for them: lookup URL
 *
 * The dataplane serves the tables `items` and `countries`, as README.md of ffi/capi makes them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <rowmill.h>

static void must(int status, const char *what) {
    if (status != ROWMILL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rowmill_status_name(status), rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: lookup URL\n");
        return 2;
    }
    rowmill_client *client;
    must(rowmill_connect(argv[1], NULL, &client), "connect");

    rowmill_server server = {.size = sizeof server};
    must(rowmill_describe(client, &server), "describe");
    printf("model %s, generation %" PRIu64 "\n", server.model, server.generation);
    rowmill_table tables[8] = {{.size = sizeof tables[0]}};
    size_t count;
    must(rowmill_tables(client, tables, 8, &count), "tables");
    for (size_t i = 0; i < count && i < 8; i++)
        printf("table %s: %" PRIu64 " rows of %" PRIu32 "\n", tables[i].name, tables[i].rows, tables[i].dim);

    /* Two features; their vectors lie side by side: a row of [clicked, country] for each bag. */
    rowmill_feature features[2] = {
        {.size = sizeof features[0], .pooling = ROWMILL_SUM, .output = ROWMILL_F32, .name = "clicked", .table = "items"},
        {.size = sizeof features[0], .pooling = ROWMILL_MEAN, .output = ROWMILL_F32, .name = "country", .table = "countries"},
    };
    rowmill_schema *schema;
    must(rowmill_bind(client, features, 2, 256, &schema), "bind");
    rowmill_layout clicked = {.size = sizeof clicked};
    must(rowmill_schema_layout(schema, 0, &clicked), "layout");

    /* Four bags: three with one item each, and one with the three items. No bag but the first has a country. */
    int64_t items[] = {17, 4, 99, 17, 4, 99}, countries[] = {30};
    int32_t item_lengths[] = {1, 1, 1, 3}, country_offsets[] = {0, 1, 1, 1, 1};
    rowmill_jagged parts[2] = {
        {.size = sizeof parts[0], .ids = items, .n_ids = 6, .id_bits = 64,
         .lengths = item_lengths, .n_divisions = 4, .division_bits = 32},
        {.size = sizeof parts[0], .ids = countries, .n_ids = 1, .id_bits = 64,
         .offsets = country_offsets, .n_divisions = 5, .division_bits = 32},
    };
    rowmill_batch batch = {.size = sizeof batch, .bags = 4, .parts = parts, .n_parts = 2};

    uint64_t bytes;
    must(rowmill_answer_bytes(schema, batch.bags, &bytes), "answer_bytes");
    rowmill_region *region;
    void *memory;
    must(rowmill_region_create(client, bytes, &region, &memory), "region_create");
    rowmill_target target = {.size = sizeof target, .region = region, .offset = 0};

    /* What is known to be wanted soon can be said ahead; of tables that are in memory anyway nothing comes of it. */
    must(rowmill_prefetch(client, schema, &batch, NULL), "prefetch");

    rowmill_ticket ticket;
    must(rowmill_submit(client, schema, &batch, &target, NULL, &ticket), "submit");
    rowmill_answer answer = {.size = sizeof answer};
    must(rowmill_wait(client, ticket, 10 * 1000 * 1000, &answer), "wait");
    printf("answered in %.1f us by generation %" PRIu64 "\n", answer.service_ns / 1e3, answer.generation);

    /* The vectors are the caller's to read. Rows are added from 0 in the order of the ids. */
    int equal = 1;
    const char *base = (const char *)memory + clicked.offset;
    for (uint32_t d = 0; d < clicked.dim; d++) {
        float sum = 0;
        for (int bag = 0; bag < 3; bag++)
            sum += ((const float *)(base + bag * clicked.stride))[d];
        equal &= sum == ((const float *)(base + 3 * clicked.stride))[d];
    }
    printf("the sum of three rows is%s what was pooled\n", equal ? "" : " not");

    must(rowmill_region_free(region), "region_free");
    must(rowmill_schema_free(schema), "schema_free");
    must(rowmill_close(client), "close");
    return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}
