/* A layout of the caller's own: rows that are not pooled, in a block, and behind them pooled vectors as f32 and f16. rows URL
 *
 *   offset 0              row of id 0, of id 1, ... up to MOST_IDS
 *   offset of the matrix  for each bag: its vector as f32, then the same as f16 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rowmill.h>

enum { DIM = 64, BAGS = 3, MOST_IDS = 16 };

static void must(int status, const char *what) {
    if (status != ROWMILL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rowmill_status_name(status), rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

/* The value of an IEEE 754 binary16. */
static float widened(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float value = exponent ? ldexpf((float)(mantissa + 1024), exponent - 25) : ldexpf((float)mantissa, -24);
    return bits >> 15 ? -value : value;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: rows URL\n");
        return 2;
    }
    rowmill_client *client;
    must(rowmill_connect(argv[1], NULL, &client), "connect");

    const uint64_t matrix = MOST_IDS * DIM * sizeof(float), stride = DIM * (sizeof(float) + sizeof(uint16_t));
    rowmill_feature features[3] = {
        {.size = sizeof features[0], .name = "rows", .table = "items", .pooling = ROWMILL_NO_POOLING, .output = ROWMILL_F32,
         .max_ids = MOST_IDS, .offset = 0, .stride = DIM * sizeof(float)},
        {.size = sizeof features[0], .name = "sum", .table = "items", .pooling = ROWMILL_SUM, .output = ROWMILL_F32,
         .offset = matrix, .stride = stride},
        {.size = sizeof features[0], .name = "half", .table = "items", .pooling = ROWMILL_SUM, .output = ROWMILL_F16,
         .offset = matrix + DIM * sizeof(float), .stride = stride},
    };
    rowmill_schema *schema;
    must(rowmill_bind(client, features, 3, BAGS, &schema), "bind");

    /* One tensor: each feature has the same five ids in three bags, the second of which is empty. */
    uint32_t ids[15], lengths[9];
    for (int feature = 0; feature < 3; feature++) {
        memcpy(ids + 5 * feature, (uint32_t[]){7, 300, 5, 99999, 0}, 5 * sizeof ids[0]);
        memcpy(lengths + 3 * feature, (uint32_t[]){2, 0, 3}, 3 * sizeof lengths[0]);
    }
    rowmill_jagged tensor = {.size = sizeof tensor, .ids = ids, .n_ids = 15, .id_bits = 32,
                             .lengths = lengths, .n_divisions = 9, .division_bits = 32};
    rowmill_batch batch = {.size = sizeof batch, .bags = BAGS, .layout = ROWMILL_TENSOR, .parts = &tensor, .n_parts = 1};

    uint64_t bytes;
    must(rowmill_answer_bytes(schema, BAGS, &bytes), "answer_bytes");
    rowmill_region *region;
    void *memory;
    must(rowmill_region_create(client, bytes, &region, &memory), "region_create");
    rowmill_target target = {.size = sizeof target, .region = region};
    rowmill_ticket ticket;
    must(rowmill_submit(client, schema, &batch, &target, NULL, &ticket), "submit");
    rowmill_answer answer = {.size = sizeof answer};
    must(rowmill_wait(client, ticket, -1, &answer), "wait");

    const float *rows = memory;
    int equal = 1;
    for (int bag = 0, first = 0; bag < BAGS; first += (int)lengths[bag++]) {
        const char *vectors = (const char *)memory + matrix + bag * stride;
        const float *sums = (const float *)vectors;
        const uint16_t *halves = (const uint16_t *)(vectors + DIM * sizeof(float));
        for (int d = 0; d < DIM; d++) {
            float sum = 0;
            for (uint32_t i = 0; i < lengths[bag]; i++)
                sum += rows[(first + (int)i) * DIM + d];
            /* A binary16 has 11 significant bits, and is rounded to the nearest. */
            equal &= sums[d] == sum && fabsf(widened(halves[d]) - sum) <= fabsf(sum) / 2048 + 1e-7f;
        }
    }
    printf("five rows in a block; their sums%s beside them\n", equal ? "" : " are not");

    must(rowmill_region_free(region), "region_free");
    must(rowmill_schema_free(schema), "schema_free");
    must(rowmill_close(client), "close");
    return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}
