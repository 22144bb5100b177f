// The manager of Kubeflow's training operator as its own main.go builds it with --enable-scheme=pytorchjob, without webhooks
// and their certificates, and with client limits: upstream leaves them at client-go's 20 requests a second.
package main

import (
	"flag"
	"log"

	kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	"github.com/sirupsen/logrus"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	schedulerpluginsv1alpha1 "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	"volcano.sh/apis/pkg/apis/scheduling/v1beta1"
)

func main() {
	qps := flag.Float64("kube-api-qps", 20, "requests per second")
	burst := flag.Int("kube-api-burst", 30, "requests at once")
	concurrency := flag.Int("concurrency", 1, "reconciles at once")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.Level(zapcore.ErrorLevel)))
	logrus.SetLevel(logrus.ErrorLevel)
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	rest := ctrl.GetConfigOrDie()
	rest.QPS, rest.Burst, rest.UserAgent = float32(*qps), *burst, "training-operator"

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kubeflowv1.AddToScheme, v1beta1.AddToScheme, schedulerpluginsv1alpha1.AddToScheme,
	} {
		must(add(scheme))
	}
	manager, err := ctrl.NewManager(rest, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	must(err)
	jobs := pytorch.NewReconciler(manager, common.GenNonGangSchedulerSetupFunc())
	must(jobs.SetupWithManager(manager, *concurrency))
	must(manager.Start(ctrl.SetupSignalHandler()))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
