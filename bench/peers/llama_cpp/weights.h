// Random weights for a model that was loaded without reading its file.
//
// Every weight has mean zero and a spread that keeps activations finite. That matters for the speed too: with a mean
// that is not zero all tokens drift to one direction over the layers and choose the same few experts.
#pragma once
#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace weights {

// xorshift64: good enough for weights, and 20 GB take seconds.
struct Random {
    uint64_t state;

    explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 1) {
        for (int i = 0; i < 8; i++) next();
    }
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    float uniform() { return float(next() >> 40) / 16777216.0f; }
    // Sum of four uniforms, mean 0, deviation 1.
    float normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f; }
    bool coin() { return next() >> 20 & 1; }
    void bytes(uint8_t * out, int count) {  // count is a multiple of 8
        for (int i = 0; i < count; i += 8) {
            uint64_t word = next() * 0x9E3779B97F4A7C15ull;
            memcpy(out + i, &word, 8);
        }
    }
};

// What a tensor's values look like: uniform in [low, high], or of a deviation around zero.
struct Rule {
    bool in_range;
    float low, high, deviation;
};

inline Rule rule_of(const std::string & name, int64_t row_length) {
    auto has = [&](const char * part) { return name.find(part) != std::string::npos; };
    if (has("ssm_conv1d")) return {true, -0.5f, 0.5f, 0};
    if (has("ssm_dt")) return {true, -6.0f, -1.5f, 0};
    if (has("ssm_a") && !has("ssm_alpha")) return {true, -7.4f, -0.37f, 0};  // -exp(A_log)
    if (has("norm")) return {true, 0.8f, 1.2f, 0};
    float gain = name == "output.weight" ? 3.0f : has("ffn_gate_inp.") ? 2.0f : 1.0f;
    if (has("token_embd")) return {false, 0, 0, 1.0f};
    return {false, 0, 0, gain / std::sqrt(float(row_length))};
}

// 64 scales between 3/4 and 5/4 of `scale`, as F16.
struct Scales {
    ggml_fp16_t value[64];

    explicit Scales(float scale) {
        for (int i = 0; i < 64; i++) value[i] = ggml_fp32_to_fp16(scale * (0.75f + 0.5f * i / 63));
    }
    // Codes of Q4_0 and Q6_K are 0 to 2^n - 1 less 2^(n-1): their mean is half a step below zero. With a sign drawn for
    // each block the weights' mean is zero.
    void put(uint8_t * at, uint8_t choice, bool negative) const {
        memcpy(at, &value[choice & 63], 2);
        if (negative) at[1] ^= 0x80;
    }
};

inline void fill(Random & random, ggml_type type, const Rule & rule, uint8_t * out, int64_t blocks) {
    if (type == GGML_TYPE_F32) {
        auto * values = reinterpret_cast<float *>(out);
        for (int64_t i = 0; i < blocks; i++) {
            values[i] = rule.in_range ? rule.low + (rule.high - rule.low) * random.uniform()
                                      : rule.deviation * random.normal();
        }
    } else if (type == GGML_TYPE_Q4_0) {  // F16 scale, 32 codes; a uniform code's deviation is 4.61
        Scales scales(rule.deviation / 4.61f);
        for (; blocks > 0; blocks--, out += 18) {
            random.bytes(out + 2, 16);
            scales.put(out, out[2], random.coin());
        }
    } else if (type == GGML_TYPE_Q6_K) {  // 192 bytes of codes, 16 scales of 8 bits, F16 scale; codes deviate by 18.5
        Scales scales(rule.deviation / (18.5f * 64.7f));
        for (; blocks > 0; blocks--, out += 210) {
            random.bytes(out, 208);
            for (int i = 192; i < 208; i++) out[i] = 48 + (out[i] & 31);
            scales.put(out + 208, out[0], random.coin());
        }
    } else {
        fprintf(stderr, "no random weights of type %s\n", ggml_type_name(type));
        exit(1);
    }
}

// Draw one tensor, in pieces by all processors, and copy it to where it lives.
inline void draw(ggml_tensor * tensor, uint64_t seed) {
    static std::vector<uint8_t> buffer(64 << 20);
    const Rule rule = rule_of(tensor->name, tensor->ne[0]);
    const int64_t block_bytes = ggml_type_size(tensor->type);
    const int64_t blocks = ggml_nelements(tensor) / ggml_blck_size(tensor->type);
    const int64_t piece = int64_t(buffer.size()) / block_bytes;
    for (int64_t start = 0; start < blocks; start += piece) {
        const int64_t count = std::min(piece, blocks - start);
        const bool small = count * block_bytes < (1 << 20);
        const int64_t parts = small ? 1 : std::max(1u, std::thread::hardware_concurrency());
        std::vector<std::thread> threads;
        for (int64_t part = 0; part < parts; part++) {
            threads.emplace_back([&, part] {
                const int64_t from = count * part / parts, to = count * (part + 1) / parts;
                Random random(seed * 1000003 + (start + from) + 7);
                fill(random, tensor->type, rule, buffer.data() + from * block_bytes, to - from);
            });
        }
        for (auto & thread : threads) thread.join();
        ggml_backend_tensor_set(tensor, buffer.data(), start * block_bytes, count * block_bytes);
    }
}

}  // namespace weights
