// The pictures of rows: files -> what is known of a picture without decoding it, and the tokens that
// stand for it in a row.
//
// In rows, plans and the prefix tree the tokens of a picture have an id of its own, from
// first_picture_id on, made from a hash of the file and of how the model reads it. So equal pictures
// are equal tokens, and what looks at tokens needs to know nothing of pictures.
//
// A picture is known as long as something holds its source: a column that was encoded, or a row. Its
// bytes are kept if they came from memory; a file at a path is read again when it is prepared. Equal
// files are one picture, which needs only one of them to be there still.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "image/picture.h"
#include "image/picture_processor.h"
#include "image/rope_positions.h"
#include "model/tower.h"
#include "runtime/picture_files.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace batchllm {

class PictureLibrary;

struct PictureSource {
    std::shared_ptr<const PictureLibrary> library;
    int32_t id = 0;
    std::array<uint64_t, 2> hash{}; // of the file's bytes and of how the model reads them
    PictureGrid grid;
    int64_t pixels = 0; // of the file

    // Where its file is: in memory, or at any of these paths. The library's mutex guards both; bytes that
    // are there stay as they are.
    mutable std::vector<std::byte> bytes;
    mutable std::set<std::string> paths;
};
using SharedPicture = std::shared_ptr<const PictureSource>;

// The pictures of a row, in their order.
struct RowPictures {
    struct Place {
        int32_t begin, length; // its tokens are [begin, begin + length) of the row's
        SharedPicture source;
    };
    std::vector<Place> places;
    RopePositions positions;
};

// A file that was read for a row, as it was then.
struct ReadPicture {
    std::string path;               // PictureFolders::File::path
    std::array<uint64_t, 2> hash{}; // PictureSource::hash
    int64_t bytes = 0;
    int64_t changed = 0; // PictureFolders::File::changed
};

// The files at paths that rows have named since it was made, each once as long as it stays as it is.
class ReadPictures {
  public:
    void add(const ReadPicture &file);
    // Those that were added since it was last called.
    std::vector<ReadPicture> take();

  private:
    std::mutex mutex_;
    std::unordered_set<uint64_t> known_; // hashes of all of them
    std::vector<ReadPicture> files_;
};

// A picture as a row brings it.
struct PictureInput {
    bool is_name = false;
    std::span<const std::byte> bytes; // of the file, or of its name
};

class PictureLibrary : public std::enable_shared_from_this<PictureLibrary> {
  public:
    // processor null: `problem` is the error of every row with pictures.
    PictureLibrary(std::unique_ptr<const PictureProcessor> processor, Status problem,
                   PictureFolders folders);
    // For a model's directory ("": none). A model that reads no pictures is no error.
    static Result<std::shared_ptr<PictureLibrary>> open(const std::string &model_dir,
                                                        const Tokenizer *tokenizer,
                                                        const std::vector<std::string> &folders);

    // Whether a picture becomes the same in both, if both have any.
    bool reads_as(const PictureLibrary &other) const;

    // ROW_PICTURE: pictures would be cut into other patches than the tower reads.
    Status check_tower(const Tower &tower) const;

    // Why no row can have pictures; OK: they can.
    const Status &problem() const { return problem_; }

    // All of the following: any thread.

    // Appends the tokens of a text, in which the model's placeholder stands once for each picture,
    // and adds their sources to *held. Errors: ROW_PICTURE; those of the tokenizer; IO.
    Status encode(const Tokenizer &tokenizer, std::string_view text,
                  std::span<const PictureInput> pictures, const EncodeOptions &options,
                  std::vector<int32_t> *tokens, std::vector<SharedPicture> *held);

    // The pictures that a row's tokens name; null: none. An id that no picture has is passed over.
    Result<std::shared_ptr<const RowPictures>> find(std::span<const int32_t> tokens) const;

    // Reads the file again if it is not in memory, decodes and resizes. Errors: ROW_PICTURE; failures of
    // the process.
    Result<std::shared_ptr<const PreparedPicture>> prepare(const PictureSource &source) const;

    // A list of what rows name from now on, as long as the caller holds it.
    std::shared_ptr<ReadPictures> keep_read();
    // Whether its content is another now. A file that is gone has not changed.
    Result<bool> has_changed(const ReadPicture &file) const;

  private:
    Result<SharedPicture> add(const PictureInput &input);
    Result<SharedPicture> known(std::string_view name);
    Result<SharedPicture> add(PictureFolders::File file, std::span<const std::byte> bytes);
    Result<PictureFolders::File> read_again(const PictureSource &source) const;
    std::array<uint64_t, 2> hash_of(std::span<const std::byte> bytes) const;
    void forget_gone();
    void list(const ReadPicture &file); // with mutex_ held

    std::unique_ptr<const PictureProcessor> processor_;
    Status problem_;
    PictureFolders folders_;
    std::atomic<bool> any_{false};
    mutable std::mutex mutex_; // of what follows
    std::unordered_map<int32_t, std::weak_ptr<const PictureSource>> by_id_;
    struct Named {
        std::weak_ptr<const PictureSource> source;
        ReadPicture file;
    };
    std::unordered_map<std::string, Named> by_name_;
    size_t forget_at_ = 1024; // entries of either
    std::vector<std::weak_ptr<ReadPictures>> lists_;
};

// The tokens of a conversation, whose parts may stand for the next of `pictures` or bring their own.
// no_pictures: the error of one that has any.
Status encode_conversation(const ChatTemplate &chat, ChatTemplate::Options options,
                           const Tokenizer &tokenizer, PictureLibrary *library,
                           const Status &no_pictures, std::string_view conversation,
                           std::span<const PictureInput> pictures, std::vector<int32_t> *tokens,
                           std::vector<SharedPicture> *held);

} // namespace batchllm
