// A folder in memory for targets that read files: one per process, removed with it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <unistd.h>

namespace batchllm::fuzz {

inline void check(bool good) {
    if (!good) std::abort();
}

class Folder {
  public:
    Folder() {
        const char *base = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        path_ = std::string(base) + "/batchllm-fuzz-" + std::to_string(::getpid());
        std::filesystem::create_directory(path_);
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    const std::string &path() const { return path_; }

    void write(const std::string &name, std::string_view bytes) const {
        FILE *file = std::fopen((path_ + "/" + name).c_str(), "wb");
        check(file != nullptr);
        check(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
        check(std::fclose(file) == 0);
    }
    void remove(const std::string &name) const { ::unlink((path_ + "/" + name).c_str()); }

  private:
    std::string path_;
};

// The text up to the next zero byte, which is also consumed; *found is false if there is none left.
inline std::string_view next_part(std::string_view *input, bool *found) {
    *found = !input->empty();
    const size_t zero = input->find('\0');
    const std::string_view part = input->substr(0, zero);
    input->remove_prefix(zero == std::string_view::npos ? input->size() : zero + 1);
    return part;
}

} // namespace batchllm::fuzz
