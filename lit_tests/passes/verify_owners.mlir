// RUN: pcp-opt %s --split-input-file --pcp-verify-owners | filecheck %s

// Each member makes a half, and gets the other's.
// CHECK-LABEL: module @a
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
module @a attributes {pcp.device = {target = @x}} {
  func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<4xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = stablehlo.subtract %w, %g : tensor<2xf32>
    %1 = "pcp.all_gather"(%0) {axes = ["dp"], dim = 0, mesh = @m, ordered, sizes = []} : (tensor<2xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
module @b attributes {pcp.device = {target = @y}} {
  func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<4xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = stablehlo.subtract %w, %g : tensor<2xf32>
    %1 = "pcp.all_gather"(%0) {axes = ["dp"], dim = 0, mesh = @m, ordered, sizes = []} : (tensor<2xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// One stage makes what both keep, and sends it.
// CHECK-LABEL: module @a
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
module @a attributes {pcp.device = {target = @x}} {
  func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = stablehlo.subtract %w, %g : tensor<2xf32>
    "pcp.send"(%0) {channel = 1, to = @b} : (tensor<2xf32>) -> ()
    return %0 : tensor<2xf32>
  }
}
module @b attributes {pcp.device = {target = @y}} {
  func.func @apply() -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = "pcp.recv"() {channel = 1, source = @a} : () -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

// Two that are alike may both make it.
// CHECK-LABEL: module @a
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
module @a attributes {pcp.device = {target = @y}} {
  func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = stablehlo.subtract %w, %g : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
module @b attributes {pcp.device = {target = @y}} {
  func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = stablehlo.subtract %w, %g : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
