// Speed of llama.cpp on a random Qwen3.6-35B-A3B, one sequence: prefill and decode at several contexts.
//
//   bench HEADER.gguf ROWS.jsonl [--contexts 256,512] [--pass UBATCH:MAX_CONTEXT:logits|greedy]... [--whole 8192]
//         [--rounds 3] [--decode 64] [--limit SECONDS]
//
// HEADER.gguf is what header.py writes: a header and a hole. The first line written has facts of the run, every other
// line one row. A pass is one setting; each runs the contexts up to its MAX_CONTEXT.
//
// - Up to --whole tokens a row is the median of --rounds rounds, each from an empty cache, after a round of the same
//   shape that is not counted. Above, one pass in pieces of 2,048 tokens goes on from context to context; time that is
//   spent on the decode tests in between is not counted, and the cache holds their tokens too.
// - Decode feeds one token a call; 8 tokens are not counted, so CUDA graphs are captured by then. With `logits` all
//   logits are copied to the host, as llama-bench has it, and the tokens are random ids; with `greedy` the device chooses
//   and only the token comes back, which is then fed.
#include "llama.h"

#include "weights.h"

#include <chrono>
#include <map>
#include <set>
#include <sstream>

struct llama_model;
// From llama.cpp's own headers (src/llama-model.h): names and tensors of a loaded model.
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

// The library reads weights with fread; this one takes its place and skips big reads, since the weights are drawn later.
extern "C" size_t fread(void * out, size_t size, size_t count, FILE * file) {
    if (size * count > (64u << 10)) {
        fseeko(file, off_t(size * count), SEEK_CUR);
        return count;
    }
    return fread_unlocked(out, size, count, file);
}

namespace {

constexpr int PIECE = 2048;      // tokens of a call while a long prompt is read
constexpr int WARM_DECODE = 8;   // decoded tokens that are not counted

struct Options {
    std::string header, rows;
    std::vector<int> contexts = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
    struct Pass {
        int ubatch, max_context;
        bool greedy;
    };
    std::vector<Pass> passes;
    int whole = 8192, rounds = 3, decode = 64;
    double limit_s = 1e9;
};

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const std::string & why) {
    fprintf(stderr, "bench: %s\n", why.c_str());
    exit(1);
}

int number(const std::string & text) {
    char * end = nullptr;
    const long value = strtol(text.c_str(), &end, 10);
    if (text.empty() || *end || value < 1 || value > 1 << 24) fail("no number that makes sense: " + text);
    return int(value);
}

Options parse(int argc, char ** argv) {
    Options o;
    if (argc < 3) fail("usage: bench HEADER.gguf ROWS.jsonl [options], see the head of bench.cpp");
    o.header = argv[1];
    o.rows = argv[2];
    for (int i = 3; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) fail(name + " wants a value");
        const std::string value = argv[i + 1];
        if (name == "--contexts") {
            o.contexts.clear();
            std::stringstream list(value);
            for (std::string item; std::getline(list, item, ',');) o.contexts.push_back(number(item));
        } else if (name == "--pass") {
            Options::Pass p{};
            char how[16] = "";
            if (sscanf(value.c_str(), "%d:%d:%15s", &p.ubatch, &p.max_context, how) != 3) fail("bad --pass " + value);
            p.greedy = std::string(how) == "greedy";
            if (!p.greedy && std::string(how) != "logits") fail("bad --pass " + value);
            o.passes.push_back(p);
        } else if (name == "--whole") o.whole = number(value);
        else if (name == "--rounds") o.rounds = number(value);
        else if (name == "--decode") o.decode = number(value);
        else if (name == "--limit") o.limit_s = number(value);
        else fail("unknown option " + name);
    }
    if (o.contexts.empty() || !std::is_sorted(o.contexts.begin(), o.contexts.end())) fail("contexts must ascend");
    if (o.passes.empty()) o.passes.push_back({2048, o.contexts.back(), false});
    return o;
}

struct Spread {
    double median, min, max;

    explicit Spread(std::vector<double> v) {
        std::sort(v.begin(), v.end());
        const size_t mid = v.size() / 2;
        median = v.size() % 2 ? v[mid] : (v[mid - 1] + v[mid]) / 2;
        min = v.front();
        max = v.back();
    }
};

// The device's name and bytes in use on it; zero bytes where there is none.
std::pair<std::string, size_t> device() {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        auto * dev = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_GPU) continue;
        size_t free = 0, total = 0;
        ggml_backend_dev_memory(dev, &free, &total);
        return {ggml_backend_dev_description(dev), total - free};
    }
    return {"CPU", 0};
}

// One setting of a context, and what is measured with it.
class Session {
  public:
    Session(llama_model * model, const Options & options, const Options::Pass & pass)
        : options(options), pass(pass), vocab(llama_vocab_n_tokens(llama_model_get_vocab(model))) {
        const int decoded = int(options.contexts.size() * options.rounds + 2) * (options.decode + WARM_DECODE);
        auto params = llama_context_default_params();
        params.n_ctx = uint32_t(pass.max_context + decoded + PIECE);
        params.n_batch = std::max(PIECE, pass.ubatch);
        params.n_ubatch = pass.ubatch;
        params.n_outputs_max = 1;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.n_threads = params.n_threads_batch = int(std::min(8u, std::thread::hardware_concurrency()));
        llama_sampler_seq_config sampler_of_sequence{};
        if (pass.greedy) {
            sampler = llama_sampler_chain_init(llama_sampler_chain_default_params());
            llama_sampler_chain_add(sampler, llama_sampler_init_greedy());
            sampler_of_sequence = {0, sampler};
            params.samplers = &sampler_of_sequence;
            params.n_samplers = 1;
        }
        context = llama_init_from_model(model, params);
        if (!context) fail("no context");
    }
    ~Session() {
        llama_free(context);
        if (sampler) llama_sampler_free(sampler);
    }

    void clear() { llama_memory_clear(llama_get_memory(context), true); }

    // Seconds for `count` random tokens after those in the cache.
    double prefill(int count) {
        std::vector<llama_token> tokens(count);
        for (auto & t : tokens) t = llama_token(random.next() % uint64_t(vocab));
        llama_synchronize(context);
        const double start = now();
        for (int at = 0; at < count; at += PIECE) call(&tokens[at], std::min(PIECE, count - at));
        llama_synchronize(context);
        return now() - start;
    }

    // Tokens a second.
    double decode() {
        llama_token token = 0;
        double start = 0;
        for (int i = 0; i < options.decode + WARM_DECODE; i++) {
            if (i == WARM_DECODE) start = now();
            if (!pass.greedy) token = llama_token(random.next() % uint64_t(vocab));
            call(&token, 1);
            llama_synchronize(context);
            if (pass.greedy) token = llama_get_sampled_token_ith(context, -1);
            if (token < 0 || token >= vocab) fail("the device chose no token");
        }
        const double rate = options.decode / (now() - start);
        if (!pass.greedy) check_logits();
        return rate;
    }

  private:
    void call(llama_token * tokens, int count) {
        if (llama_decode(context, llama_batch_get_one(tokens, count))) fail("llama_decode failed");
    }
    void check_logits() {
        const float * logits = llama_get_logits_ith(context, -1);
        for (int i = 0; i < vocab; i++)
            if (!std::isfinite(logits[i])) fail("a logit is not finite");
    }

    const Options & options;
    const Options::Pass pass;
    const int vocab;
    llama_context * context;
    llama_sampler * sampler = nullptr;
    weights::Random random{11};
};

void write_row(FILE * out, const Options::Pass & pass, int context, const std::vector<double> & prefill,
               const std::vector<double> & decode) {
    const Spread p(prefill), d(decode);
    fprintf(out,
            "{\"context\": %d, \"rounds\": %zu, \"prefill_tok_s\": %.1f, \"prefill_min\": %.1f, \"prefill_max\": %.1f, "
            "\"decode_rounds\": %zu, \"decode_tok_s\": %.1f, \"decode_min\": %.1f, \"decode_max\": %.1f, "
            "\"peak_bytes\": %zu, \"ubatch\": %d, \"decode_with\": \"%s\"}\n",
            context, prefill.size(), p.median, p.min, p.max, decode.size(), d.median, d.min, d.max, device().second,
            pass.ubatch, pass.greedy ? "greedy" : "logits");
    fflush(out);
    printf("ubatch %4d %s  context %6d  prefill %8.1f tok/s (%.1f to %.1f)  decode %6.1f tok/s (%.1f to %.1f)\n",
           pass.ubatch, pass.greedy ? "greedy" : "logits", context, p.median, p.min, p.max, d.median, d.min, d.max);
    fflush(stdout);
}

// False when the time is up.
bool measure(llama_model * model, const Options & options, const Options::Pass & pass, FILE * out, double begun) {
    Session session(model, options, pass);
    std::vector<int> contexts;
    for (int c : options.contexts)
        if (c <= pass.max_context) contexts.push_back(c);
    int done = 0;
    double spent = 0;
    for (int context : contexts) {
        std::vector<double> prefill, decode;
        if (context <= options.whole) {
            for (int round = 0; round <= options.rounds; round++) {
                if (now() - begun > options.limit_s) return false;
                session.clear();
                const double seconds = session.prefill(context);
                if (round == 0) continue;
                prefill.push_back(context / seconds);
                decode.push_back(session.decode());
            }
        } else {
            if (done == 0) {
                session.clear();
                session.prefill(PIECE);
                session.clear();
            }
            while (done < context) {
                if (now() - begun > options.limit_s) return false;
                const int step = std::min(PIECE, context - done);
                spent += session.prefill(step);
                done += step;
            }
            prefill.push_back(context / spent);
            for (int round = 0; round < options.rounds; round++) decode.push_back(session.decode());
        }
        write_row(out, pass, context, prefill, decode);
    }
    return true;
}

// Experts that 256 random tokens use in each layer.
using Experts = std::map<std::string, std::set<int32_t>>;

bool watch_routing(ggml_tensor * tensor, bool ask, void * data) {
    const std::string name = tensor->name;
    if (name.rfind("ffn_moe_topk", 0) != 0) return false;
    if (ask) return true;
    if (tensor->ne[1] == 1) return true;  // the last layer runs the last token alone
    auto & used = (*static_cast<Experts *>(data))[name];
    std::vector<int32_t> row(tensor->ne[0]);
    for (int64_t token = 0; token < tensor->ne[1]; token++) {
        ggml_backend_tensor_get(tensor, row.data(), token * tensor->nb[1], row.size() * sizeof(int32_t));
        used.insert(row.begin(), row.end());
    }
    return true;
}

Experts experts_used(llama_model * model) {
    Experts experts;
    auto params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = params.n_ubatch = 256;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.cb_eval = watch_routing;
    params.cb_eval_user_data = &experts;
    auto * context = llama_init_from_model(model, params);
    if (!context) fail("no context");
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    weights::Random random(5);
    std::vector<llama_token> tokens(256);
    for (auto & t : tokens) t = llama_token(random.next() % uint64_t(vocab));
    if (llama_decode(context, llama_batch_get_one(tokens.data(), 256))) fail("llama_decode failed");
    llama_synchronize(context);
    llama_free(context);
    return experts;
}

void log(ggml_log_level level, const char * text, void *) {
    static bool keep = false;  // a line that goes on shares the fate of its beginning
    if (level != GGML_LOG_LEVEL_CONT) {
        const std::string line = text;
        auto has = [&](const char * part) { return line.find(part) != std::string::npos; };
        keep = level >= GGML_LOG_LEVEL_WARN || (level == GGML_LOG_LEVEL_INFO && (has("buffer size") || has("offloaded") ||
               has("Device") || has("graph nodes") || has("graph splits") || has("Flash Attention")));
    }
    if (keep) fputs(text, stderr);
}

}  // namespace

int main(int argc, char ** argv) {
    const Options options = parse(argc, argv);
    const double begun = now();
    llama_log_set(log, nullptr);
    ggml_backend_load_all();
    auto params = llama_model_default_params();
    params.n_gpu_layers = 999;
    params.load_mode = LLAMA_LOAD_MODE_NONE;  // with a mapped file nothing would be read through fread
    params.use_extra_bufts = device().first != "CPU";  // repacked tensors take no pieces; on a GPU there are none
    auto * model = llama_model_load_from_file(options.header.c_str(), params);
    if (!model) fail("cannot load " + options.header);
    uint64_t seed = 1;
    double bytes = 0;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        weights::draw(tensor, seed++);
        bytes += double(ggml_nbytes(tensor));
    }
    const double loaded = now() - begun;

    size_t fewest = SIZE_MAX, most = 0;
    for (const auto & [layer, used] : experts_used(model)) {
        fewest = std::min(fewest, used.size());
        most = std::max(most, used.size());
    }
    printf("%s; %.2f GB of weights in %.1f s; 256 tokens use %zu to %zu experts of a layer\n", device().first.c_str(),
           bytes / 1e9, loaded, fewest, most);
    FILE * out = fopen(options.rows.c_str(), "w");
    if (!out) fail("cannot write " + options.rows);
    fprintf(out, "{\"device\": \"%s\", \"weights_bytes\": %.0f, \"experts_used_min\": %zu, \"experts_used_max\": %zu}\n",
            device().first.c_str(), bytes, fewest, most);
    for (const auto & pass : options.passes) {
        if (!measure(model, options, pass, out, begun)) {
            printf("time is up after %.1f s\n", now() - begun);
            break;
        }
    }
    fclose(out);
    printf("total %.1f s\n", now() - begun);
    llama_model_free(model);
}
