package org.batchllm;

/** The effective options of an engine on one of its devices, with "auto" and 0 resolved, and the sizes of the model. */
public final class EngineInfo {
    private final int deviceCount;
    private final String backend;
    private final String computeType;
    private final String device;
    private final int deviceNumber;
    private final int vocabulary;
    private final int hidden;
    private final int pageTokens;
    private final int kvGroups;
    private final boolean reproducible;
    private final long kvPages;
    private final long kvPageBytes;
    private final long stateSlots;
    private final long stateSlotBytes;
    private final long weightBytes;
    private final double commonPrefixCost;
    private final long stepTokens;
    private final long maxRequestTokens;

    EngineInfo(batchllm_info info) {
        deviceCount = info.getDevice_count();
        backend = info.getBackend();
        computeType = info.getCompute_type();
        device = info.getDevice();
        deviceNumber = info.getDevice_number();
        vocabulary = info.getVocabulary();
        hidden = info.getHidden();
        pageTokens = info.getPage_tokens();
        kvGroups = info.getKv_groups();
        reproducible = info.getReproducible() != 0;
        kvPages = info.getKv_pages();
        kvPageBytes = info.getKv_page_bytes();
        stateSlots = info.getState_slots();
        stateSlotBytes = info.getState_slot_bytes();
        weightBytes = info.getWeight_bytes();
        commonPrefixCost = info.getCommon_prefix_cost();
        stepTokens = info.getStep_tokens();
        maxRequestTokens = info.getMax_request_tokens();
    }

    /** How many devices the engine has. */
    public int deviceCount() {
        return deviceCount;
    }

    /** The backend: "cpu", "cuda" or "sim". */
    public String backend() {
        return backend;
    }

    /** The type of its arithmetic, for example "bf16". */
    public String computeType() {
        return computeType;
    }

    /** For display: the processor or GPU, and which features of it are used. */
    public String device() {
        return device;
    }

    /** The device's number, as in the options. */
    public int deviceNumber() {
        return deviceNumber;
    }

    /** The size of the vocabulary; token ids are below this. */
    public int vocabulary() {
        return vocabulary;
    }

    /** The size of a hidden state. */
    public int hidden() {
        return hidden;
    }

    /** Positions in a KV page. */
    public int pageTokens() {
        return pageTokens;
    }

    /** Groups of layers with separate KV pages. */
    public int kvGroups() {
        return kvGroups;
    }

    /** Whether a row's results are the same bits whatever rows run with it: {@link EngineOptions.Builder#reproducible}. */
    public boolean reproducible() {
        return reproducible;
    }

    /** The number of KV pages of this device. */
    public long kvPages() {
        return kvPages;
    }

    /** The size of a KV page, in bytes. */
    public long kvPageBytes() {
        return kvPageBytes;
    }

    /** The number of state slots of this device; 0 for a model whose layers have no state. */
    public long stateSlots() {
        return stateSlots;
    }

    /** The size of a state slot, in bytes. */
    public long stateSlotBytes() {
        return stateSlotBytes;
    }

    /** Memory that the model's weights take on this device, in bytes; 0: not known. */
    public long weightBytes() {
        return weightBytes;
    }

    /**
     * What a common prefix costs each token below it, in computed tokens, for {@link PlanOptions.Builder#commonPrefixCost}; 0: not known.
     */
    public double commonPrefixCost() {
        return commonPrefixCost;
    }

    /** Maximum tokens of a batch on this device. */
    public long stepTokens() {
        return stepTokens;
    }

    /** Maximum tokens of a row, prompt plus output. */
    public long maxRequestTokens() {
        return maxRequestTokens;
    }

    @Override
    public String toString() {
        return backend + " (" + computeType + ", " + device + ")";
    }
}
