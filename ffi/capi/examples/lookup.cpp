// The same as lookup.c in C++17: a wrapper whose destructors free what it holds, and exceptions. lookup-cpp URL
//
// Ids come as one tensor for all features, as a KeyedJaggedTensor has them, with its columns in another order than the schema's.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <rowmill.h>

namespace rowmill {

struct Error : std::runtime_error {
    int status;
    explicit Error(int status)
        : std::runtime_error(std::string(rowmill_status_name(status)) + ": " + rowmill_error_text()), status(status) {}
};

inline void check(int status) {
    if (status != ROWMILL_OK) throw Error(status);
}

// A struct of the header, zeroed, with its size.
template <class T> T make() {
    T value{};
    value.size = sizeof(T);
    return value;
}

template <class T, int (*End)(T *)> struct Ends {
    void operator()(T *handle) const { End(handle); }
};
using Client = std::unique_ptr<rowmill_client, Ends<rowmill_client, rowmill_close>>;
using Schema = std::unique_ptr<rowmill_schema, Ends<rowmill_schema, rowmill_schema_free>>;
using RegionHandle = std::unique_ptr<rowmill_region, Ends<rowmill_region, rowmill_region_free>>;

inline Client connect(const std::string &url, const rowmill_options *options = nullptr) {
    rowmill_client *client = nullptr;
    check(rowmill_connect(url.c_str(), options, &client));
    return Client(client);
}

struct Region {
    RegionHandle handle;
    char *memory = nullptr;

    Region(const Client &client, std::uint64_t bytes) {
        rowmill_region *region = nullptr;
        void *start = nullptr;
        check(rowmill_region_create(client.get(), bytes, &region, &start));
        handle.reset(region);
        memory = static_cast<char *>(start);
    }
};

} // namespace rowmill

static int run(const char *url) {
    auto client = rowmill::connect(url);

    std::vector<rowmill_feature> features(2, rowmill::make<rowmill_feature>());
    features[0].name = "clicked";
    features[0].table = "items";
    features[0].pooling = ROWMILL_WEIGHTED_SUM;
    features[1].name = "country";
    features[1].table = "countries";
    features[1].pooling = ROWMILL_MEAN;
    rowmill_schema *bound = nullptr;
    rowmill::check(rowmill_bind(client.get(), features.data(), features.size(), 64, &bound));
    rowmill::Schema schema(bound);
    auto clicked = rowmill::make<rowmill_layout>();
    rowmill::check(rowmill_schema_layout(schema.get(), 0, &clicked));

    // Two bags. Column 0 is the country, column 1 what was clicked.
    const std::vector<std::int64_t> ids{30, 31, 17, 17};
    const std::vector<std::int64_t> lengths{1, 1, 1, 1};
    const std::vector<float> weights{1.0f, 1.0f, 1.0f, 0.5f};
    const std::vector<std::uint32_t> columns{1, 0};
    auto tensor = rowmill::make<rowmill_jagged>();
    tensor.ids = ids.data();
    tensor.n_ids = ids.size();
    tensor.lengths = lengths.data();
    tensor.n_divisions = lengths.size();
    tensor.id_bits = tensor.division_bits = 64;
    tensor.weights = weights.data();
    auto batch = rowmill::make<rowmill_batch>();
    batch.bags = 2;
    batch.layout = ROWMILL_TENSOR;
    batch.parts = &tensor;
    batch.n_parts = 1;
    batch.columns = columns.data();
    batch.n_columns = static_cast<std::uint32_t>(columns.size());

    std::uint64_t bytes = 0;
    rowmill::check(rowmill_answer_bytes(schema.get(), batch.bags, &bytes));
    rowmill::Region region(client, bytes);
    auto target = rowmill::make<rowmill_target>();
    target.region = region.handle.get();
    rowmill_ticket ticket = 0;
    rowmill::check(rowmill_submit(client.get(), schema.get(), &batch, &target, nullptr, &ticket));
    auto answer = rowmill::make<rowmill_answer>();
    rowmill::check(rowmill_wait(client.get(), ticket, -1, &answer));

    bool equal = true;
    auto vector = [&](std::uint64_t bag) {
        return reinterpret_cast<const float *>(region.memory + clicked.offset + bag * clicked.stride);
    };
    for (std::uint32_t d = 0; d < clicked.dim; d++) equal &= vector(1)[d] == 0.5f * vector(0)[d];
    std::printf("half the weight gives%s half the vector\n", equal ? "" : " not");

    // What is refused is an exception that says where.
    const std::vector<std::int64_t> wrong{30, 31, 17, -1};
    tensor.ids = wrong.data();
    rowmill::check(rowmill_submit(client.get(), schema.get(), &batch, &target, nullptr, &ticket));
    try {
        rowmill::check(rowmill_wait(client.get(), ticket, -1, &answer));
    } catch (const rowmill::Error &error) {
        std::printf("%s\n", error.what());
        return equal && error.status == ROWMILL_ID_NEGATIVE && answer.feature == 0 && answer.position == 1 ? 0 : 1;
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: lookup-cpp URL\n");
        return 2;
    }
    try {
        return run(argv[1]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
