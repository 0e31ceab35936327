#include "tuning.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "error.h"

extern "C" const char sdort_shipped_table[], sdort_shipped_table_end[];

namespace sdort {
namespace {

struct Entry {
    std::string variant;
    double microseconds = 0;
};

using Table = std::map<std::pair<std::string, std::string>, Entry>;

// Lines that cannot be read are passed over: a damaged table costs speed, never correctness.
Table parse(std::istream& stream) {
    Table table;
    for (std::string line; std::getline(stream, line);) {
        std::stringstream fields(line);
        std::string architecture, key, time;
        Entry entry;
        if (line.empty() || line[0] == '#') continue;
        if (std::getline(fields, architecture, '\t') && std::getline(fields, key, '\t') &&
            std::getline(fields, entry.variant, '\t') && std::getline(fields, time)) {
            entry.microseconds = std::atof(time.c_str());
            table[{architecture, key}] = entry;
        }
    }
    return table;
}

std::mutex mutex;

const Table& shipped() {
    static const Table table = [] {
        std::stringstream stream(std::string(sdort_shipped_table, sdort_shipped_table_end));
        return parse(stream);
    }();
    return table;
}

// Read again when SDORT_OPS_TUNING changes: each session may have its own.
Table& own() {
    static Table table;
    static std::string read_from;
    const char* path = std::getenv("SDORT_OPS_TUNING");
    const std::string now = path ? path : "";
    if (now != read_from) {
        std::ifstream file(now);
        table = parse(file);
        read_from = now;
    }
    return table;
}

void write(const std::string& path, const Table& table) {
    const std::string temporary = path + "." + std::to_string(getpid());
    std::ofstream file(temporary);
    file << "# architecture\tkey\tvariant\tmicroseconds\n";
    for (const auto& [where, entry] : table)
        file << where.first << '\t' << where.second << '\t' << entry.variant << '\t' << entry.microseconds << '\n';
    file.close();
    std::error_code error(file ? 0 : errno, std::generic_category());
    if (file) std::filesystem::rename(temporary, path, error);  // which replaces a file on Windows too
    if (!file || error) {
        std::remove(temporary.c_str());
        throw Error("cannot write the tuning table " + path + ": " + error.message());
    }
}

}  // namespace

std::optional<std::string> tuned(const std::string& architecture, const std::string& key,
                                 const std::vector<std::string>& variants) {
    const std::lock_guard lock(mutex);
    for (const Table* table : {static_cast<const Table*>(&own()), &shipped()}) {
        const auto found = table->find({architecture, key});
        if (found == table->end()) continue;
        const std::string& variant = found->second.variant;
        if (std::find(variants.begin(), variants.end(), variant) != variants.end()) return variant;
    }
    return {};
}

bool should_tune(const std::string& architecture, const std::string& key) {
    const char* on = std::getenv("SDORT_OPS_TUNE");
    if (!on || on != std::string("1")) return false;
    const std::lock_guard lock(mutex);
    return own().count({architecture, key}) == 0;
}

void record(const std::string& architecture, const std::string& key, const std::string& variant, double microseconds) {
    const std::lock_guard lock(mutex);
    Table& table = own();
    table[{architecture, key}] = {variant, microseconds};
    if (const char* path = std::getenv("SDORT_OPS_TUNING")) write(path, table);
}

}  // namespace sdort
