// Variables of a block, and the `loop` object of a for statement. Owned by one Runtime.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace deepinfer::jinja {

struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}

  // The innermost variable of that name, or nullptr.
  const Value* Find(Symbol symbol) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [name, value] : scope->variables) {
        if (name == symbol) return &value;
      }
    }
    return nullptr;
  }
  void Set(Symbol symbol, Value value) {
    for (auto& [name, old] : variables) {
      if (name == symbol) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(symbol, std::move(value));
  }

  std::shared_ptr<Scope> parent;  // shared by the blocks and macros inside it
  std::vector<std::pair<Symbol, Value>> variables;
  bool captured = false;  // a macro holds it: the Runtime empties it at the end
};

struct LoopObject : Object {
  int64_t length() const { return static_cast<int64_t>(sequence.sequence().items.size()); }

  Value sequence;
  int64_t index0 = 0;
  int depth0 = 0;
  const ForStmt* statement = nullptr;
  std::shared_ptr<Scope> scope;  // of the statement, when the loop may call itself
  bool has_changed = false;
  Value last_changed;
};

}  // namespace deepinfer::jinja
