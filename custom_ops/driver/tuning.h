// Which variant of a kernel to launch: measured where somebody tuned, shipped otherwise.
//
// A table is text, one line an entry: architecture, key, variant and microseconds, separated by tabs. A key names the
// kernel and all that its speed depends on: "group_norm f16 n=2 hw=4096 c=320 groups=32 silu". The user's table is the
// file that SDORT_OPS_TUNING names; the shipped one is tuning/shipped.tsv, embedded by the build.
// With SDORT_OPS_TUNE=1 a key that the user's table lacks is measured when it first runs, on the real buffers, and added.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sdort {

// The variant that a table names for the key, if it is one of `variants`: an older table must not choose what is gone.
std::optional<std::string> tuned(const std::string& architecture, const std::string& key,
                                 const std::vector<std::string>& variants);

// Whether the key should be measured now: tuning is on and the user's table has no entry for it.
bool should_tune(const std::string& architecture, const std::string& key);

// Adds an entry to the user's table, in memory and, atomically, in the file. Throws Error if it cannot be written.
void record(const std::string& architecture, const std::string& key, const std::string& variant, double microseconds);

}  // namespace sdort
