// Command cel says what Kubernetes' own CEL makes of expressions, and lists the conformance cases of CEL.
//
//	cel eval              lines of {"expr", "object", "namespaceObject"} in, lines of {"value", "type"}, {"error"} or {"invalid"} out
//	cel conformance DIR   the cases of the files *.textproto in DIR, a line each
//
// Values are printed as Kollect's rows have them: bytes in base64, times and durations as CEL's string() writes them, opaque values
// of Kubernetes as their text, optionals as their value or null, and doubles that JSON does not have as {"double": "NaN"}.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	exprpb "cel.dev/expr"
	testpb "cel.dev/expr/conformance/test"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	// Messages that cases name.
	_ "cel.dev/expr/conformance/proto2"
	_ "cel.dev/expr/conformance/proto3"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "eval":
		err = evaluateLines()
	case len(os.Args) == 3 && os.Args[1] == "conformance":
		err = printCases(os.Args[2])
	default:
		err = fmt.Errorf("usage: cel eval | cel conformance DIR")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Input is an expression, and what it reads.
type Input struct {
	Expr            string          `json:"expr"`
	Object          json.RawMessage `json:"object"`
	NamespaceObject json.RawMessage `json:"namespaceObject"`
}

// Outcome is one of: a value with its type, an error, the reason why the expression is not valid.
type Outcome struct {
	Value   json.RawMessage `json:"value,omitempty"`
	Type    string          `json:"type,omitempty"`
	Error   string          `json:"error,omitempty"`
	Invalid string          `json:"invalid,omitempty"`
}

// The environment of Kubernetes 1.36, and the libraries of cel-go that Kollect has besides.
func newEnv() (*cel.Env, error) {
	set := environment.MustBaseEnvSet(version.MajorMinor(1, 36))
	extended, err := set.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Variable("object", cel.DynType),
			cel.Variable("namespaceObject", cel.DynType),
			ext.Math(), ext.Encoders(), ext.Bindings(), ext.Regex(),
		},
	})
	if err != nil {
		return nil, err
	}
	return extended.NewExpressionsEnv(), nil
}

func evaluateLines() error {
	env, err := newEnv()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines.Scan() {
		var input Input
		if err := json.Unmarshal(lines.Bytes(), &input); err != nil {
			return err
		}
		line, err := json.Marshal(evaluate(env, input))
		if err != nil {
			return err
		}
		out.Write(line)
		out.WriteByte('\n')
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return lines.Err()
}

func evaluate(env *cel.Env, input Input) (outcome Outcome) {
	defer func() {
		if panicked := recover(); panicked != nil {
			outcome = Outcome{Error: fmt.Sprint("panic: ", panicked)}
		}
	}()
	ast, issues := env.Compile(input.Expr)
	if issues.Err() != nil {
		return Outcome{Invalid: issues.Err().Error()}
	}
	program, err := env.Program(ast)
	if err != nil {
		return Outcome{Invalid: err.Error()}
	}
	variables := map[string]any{"object": native(input.Object), "namespaceObject": native(input.NamespaceObject)}
	value, _, err := program.Eval(variables)
	if err != nil {
		return Outcome{Error: err.Error()}
	}
	text, err := printValue(value)
	if err != nil {
		return Outcome{Error: err.Error()}
	}
	return Outcome{Value: text, Type: value.Type().TypeName()}
}

// native reads JSON as Kubernetes reads objects: a number is an int64 if it can be one.
func native(text json.RawMessage) any {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return nil
	}
	return withNumbers(value)
}

func withNumbers(value any) any {
	switch value := value.(type) {
	case json.Number:
		if integer, err := value.Int64(); err == nil {
			return integer
		}
		double, _ := value.Float64()
		return double
	case []any:
		for index := range value {
			value[index] = withNumbers(value[index])
		}
	case map[string]any:
		for key := range value {
			value[key] = withNumbers(value[key])
		}
	}
	return value
}

func printValue(value ref.Val) (json.RawMessage, error) {
	plain, err := plainValue(value)
	if err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}

func plainValue(value ref.Val) (any, error) {
	switch value := value.(type) {
	case types.Bool:
		return bool(value), nil
	case types.Int:
		return int64(value), nil
	case types.Uint:
		return uint64(value), nil
	case types.Double:
		return plainDouble(float64(value)), nil
	case types.String:
		return string(value), nil
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(value), nil
	case types.Null:
		return nil, nil
	case *types.Optional:
		if !value.HasValue() {
			return nil, nil
		}
		return plainValue(value.GetValue())
	case types.Timestamp, types.Duration:
		return string(value.ConvertToType(types.StringType).(types.String)), nil
	case apiservercel.Quantity:
		return value.Quantity.String(), nil
	case *apiservercel.Quantity:
		return value.Quantity.String(), nil
	case apiservercel.Semver:
		return value.Version.String(), nil
	case apiservercel.URL:
		return value.URL.String(), nil
	case apiservercel.IP:
		return value.Addr.String(), nil
	case apiservercel.CIDR:
		return value.Prefix.String(), nil
	case traits.Mapper:
		return plainMap(value)
	case traits.Lister:
		list := []any{}
		for items := value.Iterator(); items.HasNext() == types.True; {
			item, err := plainValue(items.Next())
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		return list, nil
	case *types.Type:
		return value.TypeName(), nil
	}
	return nil, fmt.Errorf("no JSON for %s", value.Type().TypeName())
}

func plainMap(value traits.Mapper) (any, error) {
	entries := map[string]any{}
	for keys := value.Iterator(); keys.HasNext() == types.True; {
		key := keys.Next()
		entry, err := plainValue(value.Get(key))
		if err != nil {
			return nil, err
		}
		name, err := plainValue(key)
		if err != nil {
			return nil, err
		}
		entries[fmt.Sprint(name)] = entry
	}
	return entries, nil
}

func plainDouble(double float64) any {
	if math.IsNaN(double) || math.IsInf(double, 0) {
		return map[string]string{"double": string(types.Double(double).ConvertToType(types.StringType).(types.String))}
	}
	return double
}

// Case is one case of the conformance files.
type Case struct {
	File string `json:"file"`
	Name string `json:"name"`
	Expr string `json:"expr"`
	// Variables, as expressions.
	Bindings map[string]string `json:"bindings,omitempty"`
	// Why the case is about something that Kollect has not.
	Excluded string  `json:"excluded,omitempty"`
	Expected Outcome `json:"expected"`
}

func printCases(directory string) error {
	files, err := filepath.Glob(filepath.Join(directory, "*.textproto"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no conformance files in %s: %v", directory, err)
	}
	out := json.NewEncoder(os.Stdout)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var cases testpb.SimpleTestFile
		if err := prototext.Unmarshal(text, &cases); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, section := range cases.GetSection() {
			for _, test := range section.GetTest() {
				name := section.GetName() + "/" + test.GetName()
				if err := out.Encode(newCase(strings.TrimSuffix(filepath.Base(file), ".textproto"), name, test)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func newCase(file, name string, test *testpb.SimpleTest) Case {
	result := Case{File: file, Name: name, Expr: test.GetExpr(), Bindings: map[string]string{}}
	switch {
	case test.GetContainer() != "":
		result.Excluded = "container"
	case test.GetDisableMacros():
		result.Excluded = "macros are off"
	case test.GetCheckOnly():
		result.Excluded = "type checker"
	}
	for variable, binding := range test.GetBindings() {
		text, ok := literal(binding.GetValue())
		if !ok {
			result.Excluded = "message"
		}
		result.Bindings[variable] = text
	}
	switch matcher := test.GetResultMatcher().(type) {
	case nil:
		result.Expected = Outcome{Value: json.RawMessage("true"), Type: "bool"}
	case *testpb.SimpleTest_Value:
		result.expect(matcher.Value)
	case *testpb.SimpleTest_TypedResult:
		if matcher.TypedResult.GetResult() == nil {
			result.Excluded = "type checker"
		} else {
			result.expect(matcher.TypedResult.GetResult())
		}
	case *testpb.SimpleTest_EvalError, *testpb.SimpleTest_AnyEvalErrors:
		result.Expected = Outcome{Error: "an error"}
	default:
		result.Excluded = "unknown values"
	}
	return result
}

func (c *Case) expect(value *exprpb.Value) {
	plain, name, ok := expected(value)
	if !ok {
		c.Excluded = "message"
		return
	}
	text, err := json.Marshal(plain)
	if err != nil {
		c.Excluded = "message"
		return
	}
	c.Expected = Outcome{Value: text, Type: name}
}

// expected is the plain value, and the name of its type.
func expected(value *exprpb.Value) (any, string, bool) {
	switch kind := value.GetKind().(type) {
	case *exprpb.Value_NullValue:
		return nil, "null_type", true
	case *exprpb.Value_BoolValue:
		return kind.BoolValue, "bool", true
	case *exprpb.Value_Int64Value:
		return kind.Int64Value, "int", true
	case *exprpb.Value_Uint64Value:
		return kind.Uint64Value, "uint", true
	case *exprpb.Value_DoubleValue:
		return plainDouble(kind.DoubleValue), "double", true
	case *exprpb.Value_StringValue:
		return kind.StringValue, "string", true
	case *exprpb.Value_BytesValue:
		return base64.StdEncoding.EncodeToString(kind.BytesValue), "bytes", true
	case *exprpb.Value_TypeValue:
		return kind.TypeValue, "type", true
	case *exprpb.Value_ListValue:
		list := []any{}
		for _, item := range kind.ListValue.GetValues() {
			plain, _, ok := expected(item)
			if !ok {
				return nil, "", false
			}
			list = append(list, plain)
		}
		return list, "list", true
	case *exprpb.Value_MapValue:
		entries := map[string]any{}
		for _, entry := range kind.MapValue.GetEntries() {
			key, _, ok := expected(entry.GetKey())
			plain, _, found := expected(entry.GetValue())
			if !ok || !found {
				return nil, "", false
			}
			entries[fmt.Sprint(key)] = plain
		}
		return entries, "map", true
	case *exprpb.Value_ObjectValue:
		var timestamp timestamppb.Timestamp
		var duration durationpb.Duration
		if kind.ObjectValue.UnmarshalTo(&timestamp) == nil {
			return stringOf(types.Timestamp{Time: timestamp.AsTime()}), "google.protobuf.Timestamp", true
		}
		if kind.ObjectValue.UnmarshalTo(&duration) == nil {
			return stringOf(types.Duration{Duration: duration.AsDuration()}), "google.protobuf.Duration", true
		}
	}
	return nil, "", false
}

func stringOf(value ref.Val) string {
	return string(value.ConvertToType(types.StringType).(types.String))
}

// literal is an expression for the value.
func literal(value *exprpb.Value) (string, bool) {
	switch kind := value.GetKind().(type) {
	case *exprpb.Value_NullValue:
		return "null", true
	case *exprpb.Value_BoolValue:
		return strconv.FormatBool(kind.BoolValue), true
	case *exprpb.Value_Int64Value:
		return strconv.FormatInt(kind.Int64Value, 10), true
	case *exprpb.Value_Uint64Value:
		return strconv.FormatUint(kind.Uint64Value, 10) + "u", true
	case *exprpb.Value_DoubleValue:
		return fmt.Sprintf("double('%v')", kind.DoubleValue), true
	case *exprpb.Value_StringValue:
		return strconv.Quote(kind.StringValue), true
	case *exprpb.Value_BytesValue:
		return fmt.Sprintf("base64.decode('%s')", base64.StdEncoding.EncodeToString(kind.BytesValue)), true
	case *exprpb.Value_TypeValue:
		return kind.TypeValue, true
	case *exprpb.Value_ListValue:
		items := []string{}
		for _, item := range kind.ListValue.GetValues() {
			text, ok := literal(item)
			if !ok {
				return "", false
			}
			items = append(items, text)
		}
		return "[" + strings.Join(items, ", ") + "]", true
	case *exprpb.Value_MapValue:
		entries := []string{}
		for _, entry := range kind.MapValue.GetEntries() {
			key, ok := literal(entry.GetKey())
			text, found := literal(entry.GetValue())
			if !ok || !found {
				return "", false
			}
			entries = append(entries, key+": "+text)
		}
		return "{" + strings.Join(entries, ", ") + "}", true
	case *exprpb.Value_ObjectValue:
		if plain, name, ok := expected(value); ok {
			function := map[string]string{"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration"}[name]
			return fmt.Sprintf("%s('%s')", function, plain), true
		}
	}
	return "", false
}
