// A visitor of a variant, made of one lambda for each alternative: std::visit(Visitor{...}, variant).
#pragma once

namespace batchllm {

template <typename... Lambdas> struct Visitor : Lambdas... { using Lambdas::operator()...; };
template <typename... Lambdas> Visitor(Lambdas...) -> Visitor<Lambdas...>;

} // namespace batchllm
